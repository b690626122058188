"""Staging larger files: bytes for a second of the prefetchers' CPU, beside ``cp -r``.

Files of 110 kB, 1 MB and 10 MB lie on the local disk, in the page cache. They are staged by an
``OverlapIterator`` whose examples read and do not decode them, and copied by ``cp -r``, in turns,
each time to a new directory on the same disk::

    python -m bench large-files

The start of the prefetchers counts. What the disk does later, on behalf of either, does not.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from typing import TYPE_CHECKING

from bench.harness.claim import Claim
from bench.harness.files import read_files
from bench.harness.targets import target_of, target_rows
from bench.harness.text import aligned, spread
from bench.harness.turns import take_turns
from bench.loaders.sources import numbers, run_once
from bench.loaders.spec import RunSpec

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

WANTED = 0.9
_FILES_IN_FOLDER = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is run."""
    add, usual = parser.add_argument, [110_000, 1_000_000, 10_000_000]
    add("--sizes", type=numbers, default=usual, help="bytes of a file, separated by commas")
    add("--total-mb", type=int, default=300, help="MB of each size (%(default)s)")
    parser.set_defaults(repeats=5)


def make_files(root: Path, size_bytes: int, total_bytes: int) -> list[str]:
    """Make files of one size, and the list of pairs; return their paths relative to ``root``."""
    paths = []
    for number in range(max(2, total_bytes // size_bytes)):
        path = f"{number // _FILES_IN_FOLDER}/{number}.bin"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(os.urandom(size_bytes))
        paths.append(path)
    root.with_suffix(".txt").write_text("".join(f"{path} 0\n" for path in paths))
    return paths


def stage(root: Path, n_files: int, scratch: Path) -> dict[str, float]:
    """Stage all files once; return the CPU seconds of the prefetchers and the bytes staged."""
    pairs, staging = str(root.with_suffix(".txt")), str(scratch / "staged")
    batch_size = max(1, min(32, n_files // 20))
    spec = RunSpec("overlap", pairs, n_files, str(root), staging, mount="given", order="own")
    facts = {**vars(spec), "is_decoding": False, "n_epochs": 1, "batch_size": batch_size}
    found = run_once(RunSpec(**facts))
    staged, wall = found["statistics"]["bytes_staged"], found["epochs"][0]["seconds"]
    return {**found["cpu"]["prefetcher"], "bytes": staged, "wall_seconds": wall}


def copy(root: Path, scratch: Path) -> dict[str, float]:
    """Copy the same files by ``cp -r``; return its CPU seconds and the bytes copied."""
    target = tempfile.mkdtemp(prefix="copied-", dir=scratch)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "-r", str(root), target], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    n_bytes = sum(path.stat().st_size for path in root.rglob("*.bin"))
    seconds = {"seconds": user + system, "user_seconds": user, "system_seconds": system}
    return {**seconds, "bytes": n_bytes}


def measure(options: argparse.Namespace, scratch: Path) -> dict:
    """Do all runs."""
    paths, points = {}, []
    for size in options.sizes:
        paths[size] = make_files(scratch / f"source-{size}", size, options.total_mb * 10**6)
        facts = {"file_bytes": size, "n_files": len(paths[size])}
        points += [{"name": way, **facts} for way in ("stage", "copy")]

    def run(point: dict) -> dict:
        size = point["file_bytes"]
        root = scratch / f"source-{size}"
        read_files(paths[size], str(root))
        is_staging = point["name"] == "stage"
        return stage(root, point["n_files"], scratch) if is_staging else copy(root, scratch)

    take_turns(points, options.repeats, run)
    targets = []
    for staged, copied in zip(points[::2], points[1::2], strict=True):
        pairs = zip(staged["runs"], copied["runs"], strict=True)
        what = f"bytes for CPU, {staged['file_bytes'] / 1e6:g} MB, of cp"
        targets.append(target_of(what, "", WANTED, [rate(a) / rate(b) for a, b in pairs]))
    return {"points": points, "targets": targets}


def rate(run: dict[str, float]) -> float:
    """Return bytes for a second of CPU."""
    return run["bytes"] / run["seconds"]


def rows(result: dict) -> list[list[str]]:
    """Return a row for each size."""
    table = [["bytes of a file", "files", "staging: MB for a CPU second", "cp -r"]]
    table[0].append("µs of CPU for a file")
    for staged, copied in zip(result["points"][::2], result["points"][1::2], strict=True):
        rates = [spread(map(rate, point["runs"]))["median"] / 1e6 for point in (staged, copied)]
        cost = spread(run["seconds"] for run in staged["runs"])["median"] / staged["n_files"] * 1e6
        row = [f"{staged['file_bytes']:,}", str(staged["n_files"])]
        table.append([*row, *(f"{number:.0f}" for number in (*rates, cost))])
    return table


CLAIM = Claim(
    __doc__,
    add_options,
    measure,
    lambda result: f"{aligned(rows(result))}\n\n{aligned(target_rows(result))}",
    quick={"sizes": [20_000, 2_000_000], "total_mb": 4, "repeats": 1},
    tables={"large-files": rows, "targets": target_rows},
)
