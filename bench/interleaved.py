"""Does the runs of several loaders over the same files in turns, and compares their examples."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.checks import differences
from bench.copying import copy_files, drop_page_cache, read_files
from bench.isolated import CHECKOUT
from bench.photographs import make_photographs
from bench.progress import progress_bar
from bench.runner import run_in_new_process
from bench.spec import RunResult, read_pairs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from bench.spec import RunSpec

STAGED, _LOCAL, _FRESH = "staged", "local", "fresh"
_ROOM_BYTES = 5 * 10**9


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


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the images are, and how slow the store is."""
    add = parser.add_argument
    add("--pairs", type=Path, help="list file of 'path label' lines (default: made images)")
    add("--root", type=Path, help="directory of the files of --pairs, on the local disk")
    add("--source", type=Path, help="directory of the files on a real slow store: no emulation")
    add("--staging", type=Path, help="directory on the local disk (default: below .cache/bench)")
    add(
        "--mount", choices=("emulated", "fuse"), default="emulated", help="slow store (%(default)s)"
    )
    add("--open-ms", type=float, default=10.0, help="latency of an open (%(default)s)")
    add("--stat-ms", type=float, default=0.0, help="latency of a stat, with fuse (%(default)s)")
    add("--mb-per-s", type=float, default=100.0, help="bandwidth of the store (%(default)s)")
    add("--drop-caches", action="store_true", help="drop the page cache before each run (root)")


def check_source_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End the program if the options of :func:`add_source_options` contradict each other."""
    if options.source and options.root:
        parser.error("--source is the place of the files; --root is for an emulated slow store")
    if bool(options.source or options.root) != bool(options.pairs):
        parser.error("own data need --pairs, and either --root or --source")


def prepare(options: argparse.Namespace, name: str, n_examples: int) -> Sources:
    """Make the images or find them; blocks until they are all there.

    Args:
        options: Those of :func:`add_source_options`.
        name: Of the benchmark.
        n_examples: How many images it needs.
    """
    scratch = options.staging or CHECKOUT / ".cache/bench"
    scratch = scratch.resolve() / f"{name}-{os.getpid()}"
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


def store_facts(options: argparse.Namespace, sources: Sources) -> dict[str, object]:
    """Return the attributes of a :class:`RunSpec` that say how slow the store is."""
    return {
        "mount": "given" if options.source else options.mount,
        "mount_point": str(sources.scratch / "mount"),
        "open_seconds": options.open_ms / 1e3,
        "stat_seconds": options.stat_ms / 1e3,
        "bytes_per_second": options.mb_per_s * 1e6 if options.mb_per_s > 0 else math.inf,
    }


def store_label(options: argparse.Namespace) -> str:
    """Return what to write next to a result."""
    if options.source:
        return "slow store given by the user"
    numbers = f"{options.open_ms:g} ms per open, {options.mb_per_s:g} MB/s"
    if options.mount == "emulated":
        return f"emulated store: {numbers}"
    stat = f", {options.stat_ms:g} ms per stat" if options.stat_ms else ""
    return f"FUSE mount: {numbers}{stat}"


def prepare_local(specs: Sequence[RunSpec], sources: Sources) -> None:
    """Copy and stage, outside of any timing, what some loaders presume; the store is fast."""
    longest = max(specs, key=lambda spec: spec.n_batches)
    if sources.local != sources.slow:
        copy_files(longest.paths(), sources.slow, sources.local, n_streams=16)
    for spec in specs:
        if spec.loader == "overlap-staged":
            run_in_new_process(
                dataclasses.replace(spec, open_seconds=0.0, bytes_per_second=math.inf)
            )


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


def run_all(
    specs: Sequence[RunSpec], names: Sequence[str], n_repeats: int, *, drops_caches: bool
) -> list[list[dict]]:
    """Do all runs in turns, each in a process of its own, and return those of each spec.

    Args:
        specs: What to run.
        names: What the progress bar calls them.
        n_repeats: Runs of each.
        drops_caches: Whether the page cache is dropped before each run; else it holds the files.
    """
    runs: list[list[dict]] = [[] for _ in specs]
    with progress_bar(len(specs) * n_repeats, "run") as progress:
        for repeat in range(n_repeats):
            # There and back, so that a drift of the machine's speed favours nobody.
            for number in list(range(len(specs)))[:: (-1) ** repeat]:
                progress.set_description(names[number])
                spec = specs[number]
                if spec.loader != "overlap-staged":
                    spec = fresh(spec)  # the same run in a new directory
                os.sync()  # what the run before wrote is not to slow down this one
                if drops_caches:
                    drop_page_cache()
                else:
                    read_files(spec.paths(), spec.root)
                runs[number].append(_as_dict(spec, run_in_new_process(spec)))
                progress.update()
    return runs


def _as_dict(spec: RunSpec, run: RunResult) -> dict:
    rate = spec.n_batches * spec.batch_size / run.wall_seconds
    return {"images_per_second": rate, **dataclasses.asdict(run)}


def verify(points: list[dict]) -> dict[str, object]:
    """Compare every run with the reference: the floor where there is one, else the first run.

    The checksums are removed from the points: they have served, and would be most of the file.
    """
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
    for point in points:
        for run in point["runs"]:
            del run["fingerprints"], run["checksums"]
    return {"batches": compared, "different": different}
