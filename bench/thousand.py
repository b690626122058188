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
import dataclasses
import json
import math
import os
import shutil
import tempfile
from typing import NamedTuple

from bench.checks import differences
from bench.copying import copy_files, drop_page_cache, read_files
from bench.isolated import CHECKOUT
from bench.machine import filesystem_of, machine_facts
from bench.photographs import make_photographs
from bench.progress import progress_bar
from bench.runner import read_pairs, run_in_new_process
from bench.spec import LOADERS, RunResult, RunSpec
from bench.summary import summarize, tables

_PREFETCHERS = (2, 4, 8, 12, 16)
_READERS = (2, 4, 8, 12, 16)
_SWEEP_PREFETCHERS = 12  # while the number of readers varies
_STAGED, _LOCAL, _FRESH = "staged", "local", "fresh"
_ROOM_BYTES = 5 * 10**9


class Point(NamedTuple):
    """One line of the table: a loader and its numbers of processes and of mini-batches."""

    loader: str
    n_prefetchers: int
    n_readers: int
    n_batches: int


class Sources(NamedTuple):
    """Where the images are.

    Attributes:
        slow: The slow store, or what stands for it.
        local: The same files on the local disk.
        pairs: Path of the list file.
        scratch: A directory of the benchmark's own on the local disk.
        label: What the data are, for the table.
    """

    slow: str
    local: str
    pairs: str
    scratch: Path
    label: str


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the checked options; ends the program if they cannot work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pairs", type=Path, help="list file of 'path label' lines (default: made images)")
    add("--root", type=Path, help="directory of the files of --pairs, on the local disk")
    add("--source", type=Path, help="directory of the files on a real slow store: no emulation")
    add("--staging", type=Path, help="directory on the local disk (default: below .cache/bench)")
    add("--open-ms", type=float, default=10.0, help="emulated latency (%(default)s)")
    add("--mb-per-s", type=float, default=100.0, help="emulated bandwidth (%(default)s)")
    add("--drop-caches", action="store_true", help="drop the page cache before each run (root)")
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
    if options.source and options.root:
        parser.error("--source is the place of the files; --root is for an emulated slow store")
    if bool(options.source or options.root) != bool(options.pairs):
        parser.error("own data need --pairs, and either --root or --source")
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


def prepare(options: argparse.Namespace, n_examples: int) -> Sources:
    """Make the images or find them; blocks until they are all there."""
    scratch = options.staging or CHECKOUT / ".cache/bench"
    scratch = scratch.resolve() / f"thousand-{os.getpid()}"
    if options.pairs:
        pairs = str(options.pairs.resolve())
        if len(read_pairs(pairs, n_examples)) < n_examples:
            sys.exit(f"{options.pairs} has fewer than {n_examples} lines: use fewer --batches")
        place = str((options.source or options.root).resolve())
        local = str(scratch / _LOCAL) if options.source else place
        return Sources(place, local, pairs, scratch, f"{n_examples} files of the user's own")
    made = make_photographs(CHECKOUT / ".cache/bench/photographs", n_examples)
    root = str(made.root.resolve())
    label = f"{n_examples} different JPEG files of {made.mean_bytes / 1e3:.1f} kB on average"
    return Sources(root, root, os.path.join(root, "pairs.txt"), scratch, label)


def spec_of(point: Point, options: argparse.Namespace, sources: Sources, n: int) -> RunSpec:
    """Return what to run for a point; ``n`` is the number of examples of the data set."""
    is_local = point.loader in ("fast", "floor")
    return RunSpec(
        loader=point.loader,
        pairs=sources.pairs,
        n_examples=n,
        root=sources.local if is_local else sources.slow,
        staging=str(sources.scratch / (_STAGED if point.loader == "overlap-staged" else _FRESH)),
        batch_size=options.batch_size,
        n_batches=point.n_batches,
        n_prefetchers=point.n_prefetchers,
        n_readers=point.n_readers,
        n_prefetch=options.n_prefetch,
        is_emulated=options.source is None,
        open_seconds=options.open_ms / 1e3,
        bytes_per_second=options.mb_per_s * 1e6 if options.mb_per_s > 0 else math.inf,
        compute_seconds=options.compute_ms / 1e3,
        copy_streams=options.copy_streams,
        seed=options.seed,
    )


def paths_of(spec: RunSpec) -> list[str]:
    """Return the files that a run reads, relative to its root, in its order."""
    pairs = read_pairs(spec.pairs, spec.n_examples)
    return [pairs[index][0] for index in spec.order()]


def prepare_local(specs: list[RunSpec], sources: Sources) -> None:
    """Copy and stage, with no emulation and outside of any timing, what some loaders presume."""
    longest = max(specs, key=lambda spec: spec.n_batches)
    if sources.local != sources.slow:
        copy_files(paths_of(longest), sources.slow, sources.local, n_streams=16)
    for spec in specs:
        if spec.loader == "overlap-staged":
            run_in_new_process(dataclasses.replace(spec, is_emulated=False))


def fresh(spec: RunSpec) -> RunSpec:
    """Return the same run with an empty staging directory of its own.

    What earlier runs staged stays until the end while there is room: ext4 avoids the inodes of
    files removed in the last minute, and looking past thousands of them slows down every create.
    """
    base = os.path.dirname(spec.staging)
    if shutil.disk_usage(base).free < _ROOM_BYTES:
        for name in os.listdir(base):
            if name.startswith(_FRESH):
                shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    return dataclasses.replace(spec, staging=tempfile.mkdtemp(prefix=f"{_FRESH}-", dir=base))


def run_all(points: list[Point], specs: list[RunSpec], options: argparse.Namespace) -> list[dict]:
    """Do all runs, interleaved, and return the points with their runs."""
    results = [{**point._asdict(), "runs": []} for point in points]
    with progress_bar(len(specs) * options.repeats, "run") as progress:
        for repeat in range(options.repeats):
            # There and back, so that a drift of the machine's speed favours nobody.
            for spec, result in list(zip(specs, results, strict=True))[:: (-1) ** repeat]:
                progress.set_description(spec.loader)
                if spec.loader != "overlap-staged":
                    spec = fresh(spec)  # the same run in a new directory
                os.sync()  # what the run before wrote is not to slow down this one
                if options.drop_caches:
                    drop_page_cache()
                else:
                    read_files(paths_of(spec), spec.root)
                result["runs"].append(_as_dict(spec, run_in_new_process(spec)))
                progress.update()
    for result in results:
        result["summary"] = summarize(result)
    return results


def _as_dict(spec: RunSpec, run: RunResult) -> dict:
    rate = spec.n_batches * spec.batch_size / run.wall_seconds
    return {"images_per_second": rate, **dataclasses.asdict(run)}


def verify(points: list[dict]) -> dict[str, object]:
    """Compare every run with the reference: the floor where there is one, else the first run."""
    ordered = sorted(points, key=lambda point: (point["loader"] != "floor", -point["n_batches"]))
    names = {field.name for field in dataclasses.fields(RunResult)}
    references: list[RunResult] = []
    compared, different = 0, {}
    for point in ordered:
        for number, run in enumerate(point["runs"]):
            result = RunResult(**{key: value for key, value in run.items() if key in names})
            wrong: set[int] = set()
            for reference in references:
                wrong.update(differences(reference, result))
                compared += min(len(reference.fingerprints), len(result.fingerprints))
            if wrong:
                different[f"{point['loader']}, run {number}"] = sorted(wrong)
            if not references or len(result.fingerprints) > len(references[-1].fingerprints):
                references.append(result)
    for point in points:  # they have served, and would be most of the file
        for run in point["runs"]:
            del run["fingerprints"], run["checksums"]
    return {"batches": compared, "different": different}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 1 if a loader delivered other examples."""
    options = parse(arguments)
    points = points_of(options)
    n_examples = max(point.n_batches for point in points) * options.batch_size
    # Without a terminal there is no progress bar, and nothing else is printed for minutes.
    n_runs = len(points) * options.repeats
    print(f"{n_runs} runs over {n_examples:,} images follow", file=sys.stderr, flush=True)
    sources = prepare(options, n_examples)
    specs = [spec_of(point, options, sources, n_examples) for point in points]
    sources.scratch.mkdir(parents=True)
    load_average = os.getloadavg()[0]
    try:
        prepare_local(specs, sources)
        results = run_all(points, specs, options)
        disk = filesystem_of(sources.scratch)
    finally:
        shutil.rmtree(sources.scratch, ignore_errors=True)
    emulation = f"emulated store: {options.open_ms:g} ms per open, {options.mb_per_s:g} MB/s"
    kept = ("batch_size", "n_prefetch", "compute_ms", "copy_streams", "seed", "repeats", "sweep")
    result = {
        "benchmark": "thousand",
        "store": "slow store given by the user" if options.source else emulation,
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
