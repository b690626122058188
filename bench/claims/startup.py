"""How long a loader takes to start, and how much memory each of its processes has of its own.

Measured are the seconds from the constructor to the first mini-batch, and after some hundred
mini-batches the private memory of every process (the pages that no other process shares), for 2 to
16 file readers, and for a short and a long list of files, which is the short one repeated::

    python -m bench startup
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from bench.harness.options import option
from bench.harness.tables import extremes_of, median_of, table
from bench.loaders.sources import MountOptions, run_points

_KINDS = ("reader", "prefetcher", "supervisor", "trainer")


class Options(MountOptions):
    """What is run."""

    files: int = option(8_000, "different ones, of the short list", quick=64)
    lengths: list[int] = option([8_000, 1_280_000], "of the lists of files", quick=[100])
    readers: list[int] = option([2, 4, 8, 16], "file readers", quick=[3])
    batches: int = option(100, "before memory is measured", quick=8)


def measure(options: Options, scratch: Path) -> dict:
    """Do all runs."""
    points = [
        # The stock iterator is slow on the slow store: a quarter has to do.
        {"loader": loader, "n_readers": n_readers, "n_examples": n_examples,
         "n_batches": options.batches if loader == "overlap" else max(options.batches // 4, 1)}
        for n_examples in options.lengths for n_readers in options.readers
        for loader in ("overlap", "slow")
    ]  # fmt: skip
    usual = {"order": "own", "measures_memory": True}
    return run_points(options, scratch, points, options.files, **usual)


def rows(result: dict) -> list[list[str]]:
    """Return a row for each loader, list and number of readers."""

    def megabytes(kind: str, point: dict) -> str:
        sizes = [size for run in point["runs"] for size in run["private_bytes"].get(kind, ())]
        return f"{median(sizes) / 1e6:.1f}" if sizes else "-"

    first = "first_batch_seconds"
    columns = {
        "loader": lambda point: point["loader"],
        "files": lambda point: f"{point['n_examples']:,}",
        "readers": lambda point: point["n_readers"],
        "first mini-batch, s": lambda point: f"{median_of(point, first):.2f}",
        "[min, max]": lambda point: extremes_of(point, first),
        "finalize, s": lambda point: f"{median_of(point, 'finalize_seconds'):.2f}",
        **{f"MB of a {kind}": partial(megabytes, kind) for kind in _KINDS},
    }
    return table(result["points"], columns)


TABLES = {"startup": rows}
