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
from bench.loaders.sources import EpochOptions, epochs_of, prepare, run_in_turns, store_facts

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass
class MeasuredOptions(EpochOptions):
    """What is run."""

    epochs: int = 4
    open_ms: float = 2.0
    mb_per_s: float = 1000.0
    repeats: int = 1


def measure(options: MeasuredOptions, scratch: Path) -> dict:
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
    options=MeasuredOptions,
    measure=measure,
    quick={"examples": 640, "epochs": 2, "batch_size": 8},
)
