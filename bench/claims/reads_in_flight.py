"""Reads in flight that tune themselves, beside fixed numbers of them.

Files of 20 kB are staged from an emulated slow store and read, not decoded, for some seconds::

    python -m bench reads-in-flight

Reported are files per second in the second half of a run; how many reads were allowed then; the
seconds until 90 % of that rate was reached; and the CPU time that staging one file takes.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from bench.harness.options import OptionsError, option
from bench.loaders.files import make_files
from bench.loaders.report import staging_us
from bench.loaders.sources import MountOptions, run_points

_FILE_BYTES = 20_000
_CONTENTS = 500  # different ones; the other files are links to them
_WINDOW_SECONDS = 0.5


class Options(MountOptions):
    fixed = ("pairs", "root", "open_ms")  # it makes its files, and varies the last one
    latencies_ms: list[int] = option([1, 10, 50], "of an open of the emulated store", quick=[1])
    reads: list[int] = option([16, 64, 256], "the fixed numbers", quick=[8])
    files: int = option(40_000, "files to stage, at most", quick=640)
    seconds: float = option(6.0, "length of a run")
    # Not ext4: it avoids the inodes of files removed in the last minute, and looking past thousands
    # of them slows down every create of the next run.
    local: Path = option(Path("/dev/shm"), "folder for files and staging (/dev/shm)")

    def check(self) -> None:
        """Refuse another store: its latencies are what is varied."""
        super().check()
        if self.source or self.mount != "emulated":
            raise OptionsError("reads-in-flight makes its files, and emulates its stores")


def measure(options: Options, scratch: Path) -> dict:
    options.root = scratch / "source"
    options.pairs = options.root.with_suffix(".txt")
    make_files(options.root, options.files, _FILE_BYTES, _CONTENTS)
    points = [
        {"open_ms": latency_ms, "open_seconds": latency_ms / 1e3, "reads_in_flight": reads}
        for latency_ms, reads in itertools.product(options.latencies_ms, (None, *options.reads))
    ]
    usual = {"loader": "overlap", "is_decoding": False, "seconds": options.seconds}
    usual["n_batches"] = options.files // options.batch_size
    found = run_points(options, scratch, points, options.files, **usual)
    for point in points:
        point["runs"] = [_summary(run, options.batch_size) for run in point["runs"]]
    found["store"] = f"emulated store, {options.mb_per_s:g} MB/s"
    return {**found, "data": f"files of {_FILE_BYTES / 1e3:g} kB, read but not decoded"}


def _summary(run: dict, batch_size: int) -> dict[str, float]:
    return {
        **facts(*map(np.array, zip(*run["reads_in_flight"], strict=True)), batch_size),
        "files_staged": run["statistics"]["files_staged"],
        "cpu_us_per_file": staging_us(run),
    }


def facts(taken_at: np.ndarray, reads: np.ndarray, batch_size: int) -> dict[str, float]:
    """Return what a run says that took its mini-batches at these seconds, with so many reads."""
    middle = np.searchsorted(taken_at, (taken_at[0] + taken_at[-1]) / 2)
    rate = (len(taken_at) - 1 - middle) * batch_size / (taken_at[-1] - taken_at[middle])
    # When, for the first time, half a second began that had nine tenths of this.
    ends = np.searchsorted(taken_at, taken_at + _WINDOW_SECONDS, side="right")
    rates = (ends - np.arange(len(taken_at))) * batch_size / _WINDOW_SECONDS
    reached = taken_at[np.argmax(rates >= 0.9 * rate)]
    return {
        "files_per_second": float(rate),
        "seconds_to_90_percent": float(reached - taken_at[0]),
        "first_batch_seconds": float(taken_at[0]),
        "reads": float(np.median(reads[middle:])),
    }


_COLUMNS = {
    "ms/open": "{open_ms}",
    "reads in flight": lambda point: point["reads_in_flight"] or "self-tuned",
    "files/s": "{files_per_second:,.0f}",
    "reads": "{reads:.0f}",
    "s to 90 %": "{seconds_to_90_percent:.2f}",
    "first, s": "{first_batch_seconds:.2f}",
    "µs of CPU for a file": "{cpu_us_per_file:.0f}",
}
TABLES = {"settings": _COLUMNS}
