"""Benchmarks, one for each published claim: ``python -m bench --list`` names them."""
