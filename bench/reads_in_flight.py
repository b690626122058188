"""Reads in flight that tune themselves, beside fixed numbers of them.

Files of 20 kB are staged from an emulated slow store and read, not decoded, so that the store and
the prefetchers are what is measured. Every run is a process of its own, stages to a directory of
its own, and is timed for some seconds; the runs of all settings are interleaved::

    python -m bench.reads_in_flight                  # a quarter of an hour
    python -m bench.reads_in_flight_figures          # draws it

Reported are files per second in the second half of a run, when a number that tunes itself has been
found; the time from the first mini-batch until 90 % of that was reached; and, from a second sweep,
what the number of prefetcher processes does, with the CPU time that staging one file takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from bench import isolated
from bench.machine import filesystem_of, machine_facts
from bench.progress import progress_bar
from bench.slowstore import SlowStore, attach
from bench.summary import aligned, spread

SELF_TUNED = "self-tuned"
_FILE_BYTES = 20_000
_CONTENTS = 500  # different ones; the other files are links to them
_BATCH_SIZE = 32
_WINDOW_SECONDS = 0.5


class Files:
    """Examples that are the sums of the bytes of a file each.

    Args:
        root: The directory of the files, named by their number.
        n_files: How many there are.
    """

    def __init__(self, root: str, n_files: int) -> None:
        self.root = root
        self.n_files = n_files

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.n_files

    def source_paths(self, i: int) -> list[str]:
        """Return the path of the file of example ``i``."""
        return [os.path.join(self.root, str(int(i) // 1000), str(int(i)))]

    def __getitem__(self, i: int) -> np.int64:
        """Read example ``i``."""
        with open(self.source_paths(i)[0], "rb", buffering=0) as file:
            return np.frombuffer(file.read(), np.uint8).sum(dtype=np.int64)


def make_files(root: str, n_files: int) -> None:
    """Make the files of :class:`Files`."""
    random = np.random.default_rng(0)
    paths = [Files(root, n_files).source_paths(i)[0] for i in range(n_files)]
    for number, path in enumerate(paths):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if number < _CONTENTS:
            Path(path).write_bytes(random.bytes(_FILE_BYTES))
            os.utime(path, (1e9, 1e9))
        else:
            os.link(paths[number % _CONTENTS], path)


def measure(request: dict) -> dict:
    """Stage and read for some seconds after the first mini-batch in this process.

    Args:
        request: ``root``, ``n_files``, ``staging``, ``open_ms``, ``mb_per_s``, ``seconds``,
            ``reads_in_flight`` and ``n_prefetchers``, both of which may be None.

    Returns:
        ``taken_at``, the seconds after the start at which each mini-batch came; ``reads``, how
        many reads were allowed then; ``files_staged``, ``n_prefetchers`` and ``cpu_us_per_file``
        of the prefetchers.
    """
    import overlapiter

    dataset = Files(request["root"], request["n_files"])
    with SlowStore(dataset.root, request["open_ms"] / 1e3, request["mb_per_s"] * 1e6) as store:
        start = time.monotonic()
        iterator = overlapiter.OverlapIterator(
            attach(dataset, store),
            _BATCH_SIZE,
            repeat=False,
            shuffle=False,
            n_processes=2,
            staging=overlapiter.Staging(
                request["staging"],
                source=dataset.root,
                n_prefetchers=request["n_prefetchers"],
                reads_in_flight=request["reads_in_flight"],
            ),
        )
        taken_at, reads = [], []
        for _ in iterator:
            taken_at.append(time.monotonic() - start)
            reads.append(iterator.stats().reads_in_flight)
            if taken_at[-1] - taken_at[0] > request["seconds"]:
                break
        stats = iterator.stats()
        cpu_seconds = _prefetcher_cpu_seconds()
        iterator.finalize()
    return {
        "taken_at": [round(seconds, 4) for seconds in taken_at],
        "reads": reads,
        "files_staged": stats.files_staged,
        "n_prefetchers": stats.n_prefetchers,
        "cpu_us_per_file": cpu_seconds / max(1, stats.files_staged) * 1e6,
    }


def _prefetcher_cpu_seconds() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith("ovl-prefetcher"):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def summarize(runs: list[dict]) -> dict[str, object]:
    """Return what the runs of one setting say."""
    facts = [_facts(run) for run in runs]
    names = ("files_per_second", "seconds_to_90_percent", "first_batch_seconds", "reads")
    summary = {name: spread(fact[name] for fact in facts) for name in names}
    summary["cpu_us_per_file"] = spread(run["cpu_us_per_file"] for run in runs)
    return summary


def _facts(run: dict) -> dict[str, float]:
    taken_at = np.array(run["taken_at"])
    middle = np.searchsorted(taken_at, (taken_at[0] + taken_at[-1]) / 2)
    rate = (len(taken_at) - 1 - middle) * _BATCH_SIZE / (taken_at[-1] - taken_at[middle])
    return {
        "files_per_second": float(rate),
        "seconds_to_90_percent": _seconds_to(0.9 * rate, taken_at) - float(taken_at[0]),
        "first_batch_seconds": float(taken_at[0]),
        "reads": median(run["reads"][middle:]),
    }


def _seconds_to(rate: float, taken_at: np.ndarray) -> float:
    """Return when, for the first time, half a second began that had this many files a second."""
    ends = np.searchsorted(taken_at, taken_at + _WINDOW_SECONDS, side="right")
    rates = (ends - np.arange(len(taken_at))) * _BATCH_SIZE / _WINDOW_SECONDS
    return float(taken_at[np.argmax(rates >= rate)])


def points_of(options: argparse.Namespace) -> list[dict]:
    """Return the settings, in the order in which they run."""
    settings = [None, *options.reads]
    points = [
        {"open_ms": open_ms, "reads_in_flight": reads, "n_prefetchers": None}
        for open_ms, reads in itertools.product(options.open_ms, settings)
    ]
    points += [
        {"open_ms": open_ms, "reads_in_flight": None, "n_prefetchers": number}
        for open_ms, number in itertools.product(options.open_ms, options.prefetchers)
    ]
    return points


def run_all(points: list[dict], options: argparse.Namespace, scratch: Path) -> None:
    """Do all runs, interleaved, and add them to the points."""
    root = str(scratch / "source")
    make_files(root, options.files)
    with progress_bar(len(points) * options.repeats, "run") as progress:
        for repeat in range(options.repeats):
            # There and back, so that a drift of the machine's speed favours nobody.
            for point in points[:: (-1) ** repeat]:
                staging = tempfile.mkdtemp(prefix="fast-", dir=scratch)
                request = {
                    "root": root,
                    "n_files": options.files,
                    "staging": staging,
                    "mb_per_s": options.mb_per_s,
                    "seconds": options.seconds,
                    **{name: point[name] for name in _SETTING},
                }
                run = isolated.call("bench.reads_in_flight", request)
                point.setdefault("runs", []).append(run)
                shutil.rmtree(staging)
                progress.update()
    for point in points:
        point["summary"] = summarize(point["runs"])


_SETTING = ("open_ms", "reads_in_flight", "n_prefetchers")


def table(points: list[dict]) -> str:
    """Return the results as text."""
    header = ["ms/open", "prefetch.", "reads", "files/s", "of best", "s to 90 %", "first", "µs CPU"]
    rows = []
    for point in points:
        found = {name: value["median"] for name, value in point["summary"].items()}
        reads = point["reads_in_flight"]
        rows.append(
            [
                f"{point['open_ms']:g}",
                str(point["runs"][0]["n_prefetchers"]),
                str(reads) if reads else f"{SELF_TUNED} ({found['reads']:.0f})",
                f"{found['files_per_second']:.0f}",
                "" if point["n_prefetchers"] else f"{of_best(point, points):.2f}",
                f"{found['seconds_to_90_percent']:.2f}",
                f"{found['first_batch_seconds']:.2f}",
                f"{found['cpu_us_per_file']:.0f}",
            ]
        )
    return aligned([header, *rows])


def of_best(point: dict, points: list[dict]) -> float:
    """Return the throughput of a point as a share of that of the best fixed number beside it."""
    rivals = [
        rival["summary"]["files_per_second"]["median"]
        for rival in points
        if rival["reads_in_flight"] and rival["open_ms"] == point["open_ms"]
    ]
    own = point["summary"]["files_per_second"]["median"]
    return own / max(rivals) if rivals else float("nan")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--open-ms", type=_numbers, default=[1, 10, 50], help="latencies of the emulated store")
    add("--mb-per-s", type=float, default=100.0, help="emulated bandwidth (%(default)s)")
    add("--reads", type=_numbers, default=[8, 16, 32, 64, 128, 256], help="the fixed numbers")
    add("--prefetchers", type=_numbers, default=[1, 2, 4], help="numbers of prefetchers")
    add("--files", type=int, default=40_000, help="files to stage, at most (%(default)s)")
    add("--seconds", type=float, default=6.0, help="length of a run (%(default)s)")
    add("--repeats", type=int, default=3, help="runs of each line of the table (%(default)s)")
    # Not ext4: it avoids the inodes of files removed in the last minute, and looking past thousands
    # of them slows down every create of the next run.
    add("--staging", type=Path, default=Path("/dev/shm"), help="local disk (%(default)s)")
    default = isolated.CHECKOUT / "bench/results/reads-in-flight.json"
    add("--out", type=Path, default=default, help="JSON file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    options = parse(arguments)
    options.staging.mkdir(parents=True, exist_ok=True)
    load_average = os.getloadavg()[0]
    points = points_of(options)
    with tempfile.TemporaryDirectory(prefix="reads-", dir=options.staging) as scratch:
        disk = filesystem_of(scratch)
        run_all(points, options, Path(scratch))
    result = {
        "benchmark": "reads in flight",
        "store": f"emulated store, {options.mb_per_s:g} MB/s",
        "data": f"files of {_FILE_BYTES / 1e3:g} kB, read but not decoded",
        "page_cache": "warm",
        "staging_filesystem": disk,
        "machine": machine_facts(),
        "load_average": load_average,
        "options": {
            "batch_size": _BATCH_SIZE,
            **{name: vars(options)[name] for name in ("seconds", "repeats", "files")},
        },
        "points": points,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(table(points))


if __name__ == "__main__":
    if isolated.is_child():
        isolated.serve(measure)
    else:
        main()
