"""How long a loader takes to start, and how much memory each of its file readers has of its own.

Measured are the seconds from the constructor to the first mini-batch, and after some hundred
mini-batches the private memory of every file reader process (the pages that no other process
shares), for a short and for a long list of files, which is the short one repeated::

    python -m bench.startup
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import time
from pathlib import Path
from statistics import median

import psutil

from bench import isolated
from bench.machine import machine_facts
from bench.photographs import make_photographs
from bench.progress import progress_bar
from bench.slowstore import SlowStore, attach
from bench.spec import read_pairs
from bench.summary import aligned, spread

LOADERS = ("overlap", "multiprocess")
#: Pairs of (file readers, prefetchers).
SIZES = ((2, 4), (16, 12))
NUMS_OF_PAIRS = (8_000, 1_280_000)
_NUM_FILES = 8_000
_BATCH_SIZE = 32
_PATIENCE_SECONDS = 30.0


def measure(request: dict) -> dict:
    """Start one loader in this process.

    Args:
        request: ``loader``, ``n_readers``, ``n_prefetchers``, ``n_pairs``, ``pairs``, ``root``,
            ``staging`` and ``n_batches``.

    Returns:
        ``first_batch_seconds``, ``finalize_seconds``, ``reader_private_bytes`` (one per reader),
        and ``trainer_private_bytes``.
    """
    from chainer.datasets import LabeledImageDataset

    files = read_pairs(request["pairs"], _NUM_FILES)
    pairs = list(itertools.islice(itertools.cycle(files), request["n_pairs"]))
    dataset = LabeledImageDataset(pairs, request["root"])
    with SlowStore(request["root"]) as store, store.installed():
        start = time.monotonic()
        iterator = _open(request, dataset, store)
        next(iterator)
        first_batch_seconds = time.monotonic() - start
        for _ in range(request["n_batches"] - 1):
            next(iterator)
        readers = _readers(request["loader"], request["n_readers"])
        private_bytes = [_private_bytes(process.pid) for process in readers]
        trainer_private_bytes = _private_bytes(os.getpid())
        start = time.monotonic()
        iterator.finalize()
        finalize_seconds = time.monotonic() - start
    return {
        "first_batch_seconds": first_batch_seconds,
        "finalize_seconds": finalize_seconds,
        "reader_private_bytes": private_bytes,
        "trainer_private_bytes": trainer_private_bytes,
    }


def _open(request: dict, dataset: object, store: SlowStore) -> object:
    if request["loader"] == "multiprocess":
        from chainer.iterators import MultiprocessIterator

        return MultiprocessIterator(dataset, _BATCH_SIZE, n_processes=request["n_readers"])
    import overlapiter

    return overlapiter.OverlapIterator(
        attach(dataset, store),
        _BATCH_SIZE,
        n_processes=request["n_readers"],
        staging=overlapiter.Staging(
            request["staging"], source=request["root"], n_prefetchers=request["n_prefetchers"]
        ),
    )


def _readers(loader: str, n_readers: int) -> list[psutil.Process]:
    """Return the file reader processes: by name, or all children where there are no others.

    Waits for those that have not started yet: the first mini-batches need not be of all.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = psutil.Process().children(recursive=True)
        if loader != "multiprocess":
            found = [process for process in found if _name(process.pid) == "ovl-reader"]
        if len(found) >= n_readers or time.monotonic() > deadline:
            return found
        time.sleep(0.005)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # ended meanwhile
        return ""


def _private_bytes(pid: int) -> int:
    """Return the bytes of memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = [line.split() for line in lines if line.startswith("Private_")]
    return sum(int(kibibytes) * 1024 for name, kibibytes, _ in found if "Hugetlb" not in name)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--batches", type=int, default=200, help="mini-batches before memory (%(default)s)")
    add("--repeats", type=int, default=3, help="runs of each (%(default)s)")
    add("--loaders", default=",".join(LOADERS), help="(%(default)s)")
    add("--out", type=Path, default=isolated.CHECKOUT / "bench/results/startup.json")
    options = parser.parse_args(arguments)
    made = make_photographs(isolated.CHECKOUT / ".cache/bench/photographs", _NUM_FILES)
    staging = isolated.CHECKOUT / f".cache/bench/startup-{os.getpid()}"
    points = [
        {"loader": name, "n_readers": n, "n_prefetchers": m, "n_pairs": n_pairs, "runs": []}
        for n_pairs in NUMS_OF_PAIRS
        for n, m in SIZES
        for name in options.loaders.split(",")
    ]
    with progress_bar(len(points) * options.repeats, "run") as progress:
        for point in points * options.repeats:
            request = {key: value for key, value in point.items() if key != "runs"}
            # The stock iterator is slow on the slow store: a quarter has to do.
            n_batches = options.batches if point["loader"] == "overlap" else options.batches // 4
            request |= {"root": str(made.root.resolve()), "n_batches": n_batches}
            point["runs"].append(_run(request, staging))
            progress.update()
    result = {
        "benchmark": "startup",
        "store": "emulated store: 10 ms per open, 100 MB/s",
        "machine": machine_facts(),
        "options": {"batches": options.batches, "repeats": options.repeats},
        "points": points,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(f"{result['store']}\n\n{_table(points)}")


def _run(request: dict, staging: Path) -> dict:
    """Do one run with an empty staging directory, which is removed again."""
    staging.mkdir(parents=True)
    pairs = os.path.join(request["root"], "pairs.txt")
    try:
        return isolated.call("bench.startup", {**request, "pairs": pairs, "staging": str(staging)})
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _table(points: list[dict]) -> str:
    rows = [["loader", "files", "readers", "prefetchers", "first batch s", "[min, max]"]]
    rows[0] += ["finalize s", "private MB per reader", "[min, max]", "trainer MB"]
    for point in points:
        runs = point["runs"]
        first = spread(run["first_batch_seconds"] for run in runs)
        memory = spread(size / 1e6 for run in runs for size in run["reader_private_bytes"])
        prefetchers = str(point["n_prefetchers"]) if point["loader"] == "overlap" else "-"
        row = [point["loader"], f"{point['n_pairs']:,}", str(point["n_readers"]), prefetchers]
        row += [f"{first['median']:.2f}", f"[{first['min']:.2f}, {first['max']:.2f}]"]
        row.append(f"{median(run['finalize_seconds'] for run in runs):.2f}")
        row += [f"{memory['median']:.1f}", f"[{memory['min']:.1f}, {memory['max']:.1f}]"]
        row.append(f"{median(run['trainer_private_bytes'] for run in runs) / 1e6:.0f}")
        rows.append(row)
    return aligned(rows)


if __name__ == "__main__":
    if isolated.is_child():
        isolated.serve(measure)
    else:
        main()
