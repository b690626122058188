"""The whole run, known from the seed: accesses, placement, performance model, simulator."""
