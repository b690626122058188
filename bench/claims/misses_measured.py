"""How many reads of each epoch cross the slow store when the staging directory holds a part.

As ``misses_simulated``, but counted at an emulated slow store under the real pipeline, for orders
that are shuffled anew in each epoch; the other policies are simulated on the same orders::

    python -m bench misses-measured

The files are the photographs of the other benchmarks; they are read, but not decoded. What is read
ahead of the trainer across the end of an epoch counts in the earlier one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bench.claims.misses_simulated import CLAIM as SIMULATED
from bench.claims.misses_simulated import FRACTIONS, simulate
from bench.loaders.epochs import add_epoch_options, epochs_of
from bench.loaders.sources import prepare, run_in_turns, store_facts

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is run."""
    add_epoch_options(parser, epochs=4, open_ms=2.0, mb_per_s=1000.0, repeats=1)


def measure(options: argparse.Namespace, scratch: Path) -> dict:
    """Do all runs."""
    sources = prepare(options, scratch, options.examples)
    sizes = options.examples, options.epochs, options.seed
    points = [simulate("shuffled", fraction, *sizes) for fraction in FRACTIONS]
    specs = [epochs_of(options, sources, "overlap", f, is_decoding=False) for f in FRACTIONS]
    run_in_turns(points, specs, options)
    for point in points:
        missed = point["missed_by_epoch"]
        del missed["ours"]
        opens = [[epoch["opens"] for epoch in run["epochs"]] for run in point.pop("runs")]
        means = (sum(each) / len(each) / options.examples for each in zip(*opens, strict=True))
        missed["measured"] = [round(mean, 6) for mean in means]
    facts = store_facts(options)
    words = f"measured with {options.examples:,} files, {options.epochs} epochs; "
    words += f"{facts['store']}; the other policies simulated"
    return {"words": words, "data": sources.label, **facts, "points": points}


CLAIM = dataclasses.replace(
    SIMULATED,
    about=__doc__,
    add_options=add_options,
    measure=measure,
    quick={"examples": 640, "epochs": 2, "batch_size": 8},
)
