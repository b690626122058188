"""The 1,000-mini-batch benchmark: every loader builds the same mini-batches from a slow store.

1,000 mini-batches of 32 images of 256x256 pixels are 32,000 different files, so no read is served
by an earlier one. Without a slow store at hand one is emulated for all loaders alike::

    python -m bench.thousand                                 # one point, under 6 minutes
    python -m bench.thousand --sweep                         # the published sweep, an hour or so
    python -m bench.thousand --source /lustre/imagenet --pairs /lustre/imagenet/pairs.txt

A rate needs fewer mini-batches than 1,000 where it is low or steady: how many each loader built
stands in the table. Each run is a process of its own; the runs of all loaders are interleaved.
The result goes to a JSON file, from which ``python -m bench.figures`` draws.

A reader's time has four parts, the same for each loader: "initialize" from the constructor until
it begins to wait for its first index list; "dequeue an index list", waiting for one; "fetch data",
inside ``dataset[i]``; "others", the rest until the last mini-batch was delivered.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file: import bench from the checkout, not from bench/
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import json
import os
import shutil
from typing import NamedTuple

from bench.interleaved import (
    STAGED,
    Sources,
    add_source_options,
    check_source_options,
    prepare,
    prepare_local,
    run_all,
    store_facts,
    store_label,
    verify,
)
from bench.isolated import CHECKOUT
from bench.machine import filesystem_of, machine_facts
from bench.spec import LOADERS, RunSpec
from bench.summary import summarize, tables

_PREFETCHERS = (2, 4, 8, 12, 16)
_READERS = (2, 4, 8, 12, 16)
_SWEEP_PREFETCHERS = 12  # while the number of readers varies


class Point(NamedTuple):
    """One line of the table: a loader and its numbers of processes and of mini-batches."""

    loader: str
    n_prefetchers: int
    n_readers: int
    n_batches: int


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the checked options; ends the program if they cannot work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add_source_options(parser)
    add("--batch-size", type=int, default=32, help="images in a mini-batch (%(default)s)")
    add(
        "--batches",
        type=int,
        default=1000,
        help="of overlap and overlap-staged (%(default)s)",
    )
    add("--slow-batches", type=int, default=60, help="of slow and torch (%(default)s)")
    add("--steady-batches", type=int, default=300, help="of all others (%(default)s)")
    add("--n-prefetch", type=int, default=1, help="this argument of the iterators (%(default)s)")
    add("--compute-ms", type=float, default=0.0, help="sleep per mini-batch (%(default)s)")
    add("--copy-streams", type=int, default=16, help="files in flight in copy (%(default)s)")
    add("--seed", type=int, default=0, help="seed of the order (%(default)s)")
    add("--prefetchers", type=_counts, help="prefetcher processes (4; sweep: 2,4,8,12,16)")
    add("--readers", type=_counts, help="file reader processes (2; sweep: 2,4,8,12,16)")
    add("--fixed-readers", type=int, default=2, help="while prefetchers vary (%(default)s)")
    add("--sweep", action="store_true", help="vary prefetchers, then readers with 12 prefetchers")
    add("--loaders", type=_loaders, default=[name for name in LOADERS if name != "torch"])
    add("--repeats", type=int, default=3, help="runs of each line of the table (%(default)s)")
    add("--out", type=Path, default=CHECKOUT / "bench/results/thousand.json", help="JSON file")
    options = parser.parse_args(arguments)
    options.prefetchers = options.prefetchers or (list(_PREFETCHERS) if options.sweep else [4])
    options.readers = options.readers or (list(_READERS) if options.sweep else [2])
    if not options.sweep and max(len(options.prefetchers), len(options.readers)) > 1:
        parser.error("several numbers of processes need --sweep")
    check_source_options(options, parser)
    return options


def _counts(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _loaders(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(LOADERS))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {', '.join(LOADERS)}")
    return names


def points_of(options: argparse.Namespace) -> list[Point]:
    """Return the lines of the table in the order in which they run."""
    lengths = dict.fromkeys(LOADERS, min(options.steady_batches, options.batches))
    lengths["overlap"] = lengths["overlap-staged"] = options.batches
    lengths["slow"] = lengths["torch"] = min(options.slow_batches, options.batches)
    fixed = options.fixed_readers if options.sweep else options.readers[0]
    points = []
    for loader in options.loaders:
        if loader == "overlap":
            numbers = [(n, fixed) for n in options.prefetchers]
            if options.sweep:
                numbers += [(_SWEEP_PREFETCHERS, n) for n in options.readers]
        elif loader == "floor":
            numbers = [(0, len(os.sched_getaffinity(0)))]
        elif loader in ("slow", "fast"):
            numbers = [(0, n) for n in options.readers]
        else:
            numbers = [(options.prefetchers[0] if loader == "overlap-staged" else 0, fixed)]
        numbers = dict.fromkeys(numbers)
        points += [Point(loader, *pair, lengths[loader]) for pair in numbers]
    return points


def spec_of(point: Point, options: argparse.Namespace, sources: Sources, n: int) -> RunSpec:
    """Return what to run for a point; ``n`` is the number of examples of the data set."""
    is_local = point.loader in ("fast", "floor")
    return RunSpec(
        loader=point.loader,
        pairs=sources.pairs,
        n_examples=n,
        root=sources.local if is_local else sources.slow,
        staging=str(sources.scratch / STAGED),
        batch_size=options.batch_size,
        n_batches=point.n_batches,
        n_prefetchers=point.n_prefetchers,
        n_readers=point.n_readers,
        n_prefetch=options.n_prefetch,
        compute_seconds=options.compute_ms / 1e3,
        copy_streams=options.copy_streams,
        seed=options.seed,
        **store_facts(options, sources),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 1 if a loader delivered other examples."""
    options = parse(arguments)
    points = points_of(options)
    n_examples = max(point.n_batches for point in points) * options.batch_size
    # Without a terminal there is no progress bar, and nothing else is printed for minutes.
    n_runs = len(points) * options.repeats
    print(f"{n_runs} runs over {n_examples:,} images follow", file=sys.stderr, flush=True)
    sources = prepare(options, "thousand", n_examples)
    specs = [spec_of(point, options, sources, n_examples) for point in points]
    sources.scratch.mkdir(parents=True)
    load_average = os.getloadavg()[0]
    try:
        prepare_local(specs, sources)
        names = [point.loader for point in points]
        runs = run_all(specs, names, options.repeats, drops_caches=options.drop_caches)
        disk = filesystem_of(sources.scratch)
    finally:
        shutil.rmtree(sources.scratch, ignore_errors=True)
    results = [
        {**point._asdict(), "runs": found} for point, found in zip(points, runs, strict=True)
    ]
    for point in results:
        point["summary"] = summarize(point)
    kept = ("batch_size", "n_prefetch", "compute_ms", "copy_streams", "seed", "repeats", "sweep")
    result = {
        "benchmark": "thousand",
        "store": store_label(options),
        "data": sources.label,
        "page_cache": "dropped before each run" if options.drop_caches else "warm before each run",
        "staging_filesystem": disk,
        "machine": machine_facts(),
        "load_average": load_average,
        "options": {
            "n_batches": n_examples // options.batch_size,
            **{key: vars(options)[key] for key in kept},
        },
        "verified": verify(results),
        "points": results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(tables(result))
    shown, python = os.path.relpath(options.out), os.path.relpath(sys.executable)
    print(f"Every number is in {shown}; `{python} -m bench.figures {shown}` draws the figures.")
    return 1 if result["verified"]["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
