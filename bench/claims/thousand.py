"""The 1,000-mini-batch benchmark: every loader builds the same mini-batches from a slow store.

1,000 mini-batches of 32 images of 256x256 pixels are 32,000 different files, so no read is served
by an earlier one. Without a slow store at hand one is emulated for all loaders alike::

    python -m bench                             # a first look: fewer mini-batches, a minute
    python -m bench thousand --whole            # one point of the experiment, some 6 minutes
    python -m bench thousand --whole --sweep    # over 1 to 16 processes, an hour or so
    python -m bench --source /lustre/imagenet --pairs /lustre/imagenet/pairs.txt

A rate needs fewer mini-batches than 1,000 where it is low or steady: how many each loader built
stands in the table. Each run is a process of its own; the runs of all loaders are interleaved.

A reader's time has four parts, the same for each loader: "initialize" from the constructor until
it begins to wait for its first index list; "dequeue an index list", waiting for one; "fetch data",
inside ``dataset[i]``; "others", the rest until the last mini-batch was delivered.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bench.harness.claim import Claim
from bench.loaders import report
from bench.loaders.checks import verify
from bench.loaders.sources import (
    add_source_options,
    check_source_options,
    names_of,
    numbers,
    prepare,
    prepare_local,
    run_in_turns,
    spec_of,
    store_facts,
)
from bench.loaders.spec import LOADERS

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_SWEPT = [1, 2, 4, 8, 12, 16]
_SWEEP_PREFETCHERS = 12  # while the number of readers varies
_LOADERS = ["overlap", "slow", "fast", "copy", "floor", "overlap-staged"]
#: Mini-batches of overlap and overlap-staged, of slow and torch, of all others, and repeats.
_LENGTHS = {"first look": (120, 20, 50, 2), "whole": (1000, 60, 300, 3)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is run, and how often."""
    add = parser.add_argument
    add_source_options(parser)
    add("--whole", action="store_true", help="as published: 1,000 mini-batches, 3 repeats")
    add("--sweep", action="store_true", help="vary prefetchers, then readers with 12 prefetchers")
    add("--batch-size", type=int, default=32, help="images in a mini-batch (%(default)s)")
    add("--batches", type=int, help="of overlap and overlap-staged (120; whole: 1000)")
    add("--slow-batches", type=int, help="of slow and torch (20; whole: 60)")
    add("--steady-batches", type=int, help="of all others (50; whole: 300)")
    add("--n-prefetch", type=int, default=1, help="this argument of the iterators (%(default)s)")
    add("--compute-ms", type=float, default=0.0, help="sleep per mini-batch (%(default)s)")
    add("--copy-streams", type=int, default=64, help="files in flight in copy (%(default)s)")
    add("--prefetchers", type=numbers, help="prefetcher processes (4; sweep: 1,2,4,8,12,16)")
    add("--readers", type=numbers, help="file reader processes (2; sweep: 1,2,4,8,12,16)")
    add("--fixed-readers", type=int, default=2, help="while prefetchers vary (%(default)s)")
    add("--loaders", type=names_of(LOADERS), default=_LOADERS, help=f"of {', '.join(LOADERS)}")
    parser.set_defaults(repeats=None)


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Complete the options."""
    usual = _LENGTHS["whole" if options.whole else "first look"]
    for name, value in zip(
        ("batches", "slow_batches", "steady_batches", "repeats"), usual, strict=True
    ):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.prefetchers = options.prefetchers or (_SWEPT if options.sweep else [4])
    options.readers = options.readers or (_SWEPT if options.sweep else [2])
    if not options.sweep and max(len(options.prefetchers), len(options.readers)) > 1:
        parser.error("several numbers of processes need --sweep")
    check_source_options(options, parser)


def points_of(options: argparse.Namespace) -> list[dict]:
    """Return the lines of the table in the order in which they run."""
    fixed = options.fixed_readers if options.sweep else options.readers[0]
    points = []
    for loader in options.loaders:
        length = options.steady_batches
        if loader in ("overlap", "overlap-staged"):
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


def measure(options: argparse.Namespace, scratch: Path) -> dict:
    """Do all runs."""
    points = points_of(options)
    n_examples = max(point["n_batches"] for point in points) * options.batch_size
    sources = prepare(options, scratch, n_examples)
    specs = [
        spec_of(
            options,
            sources,
            **point,
            n_examples=n_examples,
            batch_size=options.batch_size,
            n_prefetch=options.n_prefetch,
            compute_seconds=options.compute_ms / 1e3,
            copy_streams=options.copy_streams,
        )
        for point in points
    ]
    prepare_local(specs, sources)
    run_in_turns(points, specs, options)
    verified = verify(points)
    for point in points:
        point["summary"] = report.summarize(point)
    return {"data": sources.label, **store_facts(options), "verified": verified, "points": points}


CLAIM = Claim(
    __doc__,
    add_options,
    measure,
    report.show,
    quick={"batch_size": 4, "batches": 12, "slow_batches": 4, "steady_batches": 6, "repeats": 1},
    check=check,
    tables={"loaders": report.rate_rows, "cpu": report.cpu_rows},
    figures="bench.claims.thousand_figures",
    faults=report.faults,
)
