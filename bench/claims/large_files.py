"""Staging larger files: bytes for a second of the prefetchers' CPU, beside ``cp -r``.

Files of 110 kB, 1 MB and 10 MB lie on the local disk, in the page cache. They are staged by an
``OverlapIterator`` whose examples read and do not decode them, and copied by ``cp -r``, in turns,
each time to a new directory on the same disk::

    python -m bench large-files

The start of the prefetchers counts. What the disk does later, on behalf of either, does not.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.harness.options import CommonOptions, option
from bench.harness.tables import by_repeat, median_of, table, target_of
from bench.harness.turns import take_turns
from bench.loaders.files import make_files, read_files
from bench.loaders.sources import run_once
from bench.loaders.spec import RunSpec


class Options(CommonOptions):
    sizes: list[int] = option([110_000, 10**6, 10**7], "bytes of a file", quick=[20_000, 2 * 10**6])
    total_mb: int = option(300, "MB of each size", quick=4)
    repeats: int = 5


def stage(point: dict, root: Path, scratch: Path) -> dict[str, float]:
    """Stage all files once; return the CPU seconds of the prefetchers and the bytes staged."""
    pairs, staging, n_files = root.with_suffix(".txt"), scratch / "staged", point["n_files"]
    spec = RunSpec("overlap", str(pairs), n_files, str(root), str(staging), mount="given")
    size = max(1, min(32, n_files // 20))
    found = run_once(replace(spec, order="own", is_decoding=False, n_epochs=1, batch_size=size))
    staged, wall = found["statistics"]["bytes_staged"], found["epochs"][0]["seconds"]
    return {**found["cpu"]["prefetcher"], "bytes": staged, "wall_seconds": wall}


def copy(point: dict, root: Path, scratch: Path) -> dict[str, float]:
    """Copy the same files by ``cp -r``; return its CPU seconds and the bytes copied."""
    read_files(map(str, root.glob("*/*")), "")
    target = tempfile.mkdtemp(prefix="copied-", dir=scratch)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "-r", str(root), target], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "bytes": point["n_files"] * point["file_bytes"]}


def measure(options: Options, scratch: Path) -> dict:
    points, ways = [], {"stage": stage, "copy": copy}
    for size in options.sizes:
        n_files = max(2, options.total_mb * 10**6 // size)
        make_files(scratch / f"source-{size}", n_files, size, n_files)
        points += [{"name": way, "file_bytes": size, "n_files": n_files} for way in ways]

    def run(point: dict) -> dict:
        return ways[point["name"]](point, scratch / f"source-{point['file_bytes']}", scratch)

    take_turns(points, options.repeats, run)
    targets = [
        target_of(f"bytes for CPU, {staged['file_bytes'] / 1e6:g} MB, of cp", "", 0.9,
                  by_repeat(lambda a, b: rate(a) / rate(b), staged, copied))
        for staged, copied in zip(points[::2], points[1::2], strict=True)
    ]  # fmt: skip
    return {"points": points, "targets": targets}


def rate(run: dict[str, float]) -> float:
    """Return bytes for a second of CPU."""
    return run["bytes"] / run["seconds"]


def rows(result: dict) -> list[list[str]]:
    def mb_per_second(point: dict) -> str:
        return f"{median(map(rate, point['runs'])) / 1e6:.0f}"

    columns = {
        "bytes of a file": lambda pair: f"{pair[0]['file_bytes']:,}",
        "files": lambda pair: pair[0]["n_files"],
        "staging: MB for a CPU second": lambda pair: mb_per_second(pair[0]),
        "cp -r": lambda pair: mb_per_second(pair[1]),
        "µs of CPU for a file": lambda pair: (
            f"{median_of(pair[0], 'seconds') / pair[0]['n_files'] * 1e6:.0f}"
        ),
    }
    points = result["points"]
    return table(zip(points[::2], points[1::2], strict=True), columns)


TABLES = {"large-files": rows}
