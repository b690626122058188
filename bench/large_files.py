"""Staging larger files: bytes for a second of the prefetchers' CPU, beside ``cp -r``.

Files of 110 kB, 1 MB and 10 MB lie on the local disk, in the page cache. They are staged by an
``OverlapIterator`` whose examples read and do not decode them, and copied by ``cp -r``, in turns,
each time to a new directory on the same disk::

    python -m bench.large_files

The start of the prefetchers counts. What the disk does later, on behalf of either, does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path

from bench import isolated
from bench.copying import read_files
from bench.machine import commit_facts, filesystem_of, machine_facts
from bench.pipeline_targets import target_of, target_rows
from bench.progress import progress_bar
from bench.summary import aligned, spread

NAME = "large-files"
SIZES = (110_000, 1_000_000, 10_000_000)
WANTED = 0.9
_FILES_IN_FOLDER = 100


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


def stage(root: Path, n_files: int, local: str) -> dict[str, float]:
    """Stage all files once; return the CPU seconds of the prefetchers and the bytes staged."""
    request = {
        "loader": "overlap",
        "fraction": None,
        "is_decoding": False,
        "root": str(root),
        "pairs": str(root.with_suffix(".txt")),
        "n_examples": n_files,
        "batch_size": max(1, min(32, n_files // 20)),
        "n_epochs": 1,
        "n_readers": 2,
        "seed": 0,
        "local": local,
        "mount": "given",
        "open_seconds": 0.0,
        "bytes_per_second": 0.0,
        "beside_fraction": 0.0,
    }
    found = isolated.call("bench.epoch_runs", request)
    used, staged = found["cpu"]["prefetcher"], found["statistics"]["bytes_staged"]
    return {**used, "bytes": staged, "wall_seconds": found["epoch_seconds"][0]}


def copy(root: Path, local: str) -> dict[str, float]:
    """Copy the same files by ``cp -r``; return its CPU seconds and the bytes copied."""
    target = tempfile.mkdtemp(prefix="copied-", dir=local)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "-r", str(root), target], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    n_bytes = sum(path.stat().st_size for path in root.rglob("*.bin"))
    seconds = {"seconds": user + system, "user_seconds": user, "system_seconds": system}
    return {**seconds, "bytes": n_bytes}


def rate(run: dict[str, float]) -> float:
    """Return bytes for a second of CPU."""
    return run["bytes"] / run["seconds"]


def measure(options: argparse.Namespace, local: Path) -> list[dict]:
    """Do all runs in turns, and return what was found for each size."""
    points, paths = [], {}
    for size in options.sizes:
        root = local / f"source-{size}"
        paths[size] = make_files(root, size, options.total_mb * 10**6)
        points.append({"file_bytes": size, "n_files": len(paths[size]), "stage": [], "copy": []})
    with progress_bar(2 * len(points) * options.repeats, "run") as progress:
        for repeat in range(options.repeats):
            for point in points[:: (-1) ** repeat]:
                root = local / f"source-{point['file_bytes']}"
                for way in ("stage", "copy")[:: (-1) ** repeat]:
                    os.sync()
                    read_files(paths[point["file_bytes"]], str(root))
                    is_staging = way == "stage"
                    n_files = point["n_files"]
                    found = (
                        stage(root, n_files, str(local)) if is_staging else copy(root, str(local))
                    )
                    point[way].append(found)
                    progress.update()
    return points


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sizes", type=_sizes, default=list(SIZES), help="bytes of a file, separated by commas")
    add("--total-mb", type=int, default=300, help="MB of each size (%(default)s)")
    add("--repeats", type=int, default=5, help="runs of each (%(default)s)")
    add("--local", type=Path, help="a folder on the local disk (that of temporary files)")
    add("--out", type=Path, default=isolated.CHECKOUT / f"bench/results/{NAME}.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-large-", dir=options.local) as local:
        points = measure(options, Path(local))
        disk = filesystem_of(local)
    found = []
    for point in points:
        pairs = zip(point["stage"], point["copy"], strict=True)
        what = f"bytes for CPU, {point['file_bytes'] / 1e6:g} MB, of cp"
        found.append(target_of(what, "", WANTED, [rate(a) / rate(b) for a, b in pairs]))
    targets = [dataclasses.asdict(target) for target in found]
    facts = {"benchmark": NAME, **commit_facts(), "machine": machine_facts(), "filesystem": disk}
    sizes = {name: vars(options)[name] for name in ("sizes", "total_mb", "repeats")}
    result = {**facts, "options": sizes, "points": points, "targets": targets}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(f"{disk}\n\n{_table(points)}\n\n{aligned(target_rows(targets))}\n")


def _table(points: list[dict]) -> str:
    rows = [
        ["file bytes", "files", "staging: MB for a CPU second", "cp -r", "µs of CPU for a file"]
    ]
    for point in points:
        rates = [spread(rate(run) for run in point[way])["median"] for way in ("stage", "copy")]
        cost = spread(run["seconds"] for run in point["stage"])["median"] / point["n_files"] * 1e6
        cells = [*(f"{rate / 1e6:.0f}" for rate in rates), f"{cost:.0f}"]
        rows.append([str(point["file_bytes"]), str(point["n_files"]), *cells])
    return aligned(rows)


def _sizes(text: str) -> list[int]:
    return [int(float(word)) for word in text.split(",")]


if __name__ == "__main__":
    main()
