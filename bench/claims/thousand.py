"""The 1,000-mini-batch benchmark: every loader builds the same mini-batches from a slow store.

1,000 mini-batches of 32 images of 256x256 pixels are 32,000 different files, so no read is served
by an earlier one. Without a slow store at hand one is emulated for all loaders alike::

    python -m bench                             # a first look: fewer mini-batches, a minute
    python -m bench thousand --whole            # one point of the experiment, some 6 minutes
    python -m bench thousand --whole --sweep    # over 1 to 16 processes, an hour or so
    python -m bench --source /lustre/imagenet --pairs /lustre/imagenet/pairs.txt

A rate needs fewer mini-batches than 1,000 where it is low or steady: how many each loader built
stands in the table.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.harness.options import OptionsError, option
from bench.loaders import report
from bench.loaders.sources import MountOptions
from bench.loaders.spec import LOADERS

_SWEPT = [1, 2, 4, 8, 12, 16]
_SWEEP_PREFETCHERS, _SWEEP_READERS = 12, 2  # while the other number varies
_LOADERS = ["overlap", "slow", "fast", "copy", "floor", "overlap-staged"]
#: Mini-batches of overlap and overlap-staged, of slow and torch, of all others, and repeats.
_LENGTHS = {"first look": (120, 20, 50, 2), "whole": (1000, 60, 300, 3)}


class Options(MountOptions):
    """What is run, and how often."""

    whole: bool = option(False, "as published: 1,000 mini-batches, 3 repeats")
    sweep: bool = option(False, "vary prefetchers, then readers with 12 prefetchers")
    batches: int | None = option(None, "of overlap, overlap-staged (120; whole: 1000)", quick=12)
    slow_batches: int | None = option(None, "of slow and torch (20; whole: 60)", quick=4)
    steady_batches: int | None = option(None, "of all others (50; whole: 300)", quick=6)
    repeats: int | None = option(None, "interleaved runs of each (2; whole: 3)", quick=1)
    prefetchers: list[int] = option([], "prefetchers (4; sweep: 1,2,4,8,12,16)")
    readers: list[int] = option([], "file readers (2; sweep: 1,2,4,8,12,16)")
    loaders: list[str] = option(_LOADERS, f"of {', '.join(LOADERS)}", known=LOADERS)

    def check(self) -> None:
        """Complete the options."""
        names = ("batches", "slow_batches", "steady_batches", "repeats")
        usual = _LENGTHS["whole" if self.whole else "first look"]
        for name, value in zip(names, usual, strict=True):
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.prefetchers = self.prefetchers or (_SWEPT if self.sweep else [4])
        self.readers = self.readers or (_SWEPT if self.sweep else [2])
        if not self.sweep and max(len(self.prefetchers), len(self.readers)) > 1:
            raise OptionsError("several numbers of processes need --sweep")
        super().check()


def points_of(options: Options) -> list[dict]:
    """Return the lines of the table in the order in which they run."""
    fixed = _SWEEP_READERS if options.sweep else options.readers[0]
    points = []
    for loader in options.loaders:
        length = options.steady_batches
        # The floor as many as ours: fewer would have a larger part of their time in the start.
        if loader in ("overlap", "overlap-staged", "floor"):
            length = options.batches
        elif loader in ("slow", "torch"):
            length = options.slow_batches
        pairs = [(options.prefetchers[0] if loader == "overlap-staged" else 0, fixed)]
        if loader == "overlap":
            pairs = [(n, fixed) for n in options.prefetchers]
            pairs += [(_SWEEP_PREFETCHERS, n) for n in options.readers if options.sweep]
        elif loader in ("floor", "ceiling"):
            pairs = [(0, len(os.sched_getaffinity(0)))]
        elif loader in ("slow", "fast"):
            pairs = [(0, n) for n in options.readers]
        names = ("loader", "n_prefetchers", "n_readers", "n_batches")
        for pair in dict.fromkeys(pairs):
            values = (loader, *pair, min(length, options.batches))
            points.append(dict(zip(names, values, strict=True)))
    return points


def measure(options: Options, scratch: Path) -> dict:
    """Do all runs."""
    points = points_of(options)
    n_examples = max(point["n_batches"] for point in points) * options.batch_size
    return report.measure_points(options, scratch, points, n_examples)


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw every figure for which a result has data."""
    from bench.claims import thousand_figures

    return thousand_figures.draw_all(result, stem)


TABLES = {"loaders": report.rate_rows, "parts": report.part_rows, "cpu": report.cpu_rows}
faults = report.faults
