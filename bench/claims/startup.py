"""How long a loader takes to start, and how much memory each of its processes has of its own.

Measured are the seconds from the constructor to the first mini-batch, and after some hundred
mini-batches the private memory of every process (the pages that no other process shares), for 2 to
16 file readers, and for a short and a long list of files, which is the short one repeated::

    python -m bench startup
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.harness.claim import Claim
from bench.harness.text import aligned, extremes, spread
from bench.loaders.checks import forget_checksums
from bench.loaders.sources import (
    add_source_options,
    check_source_options,
    names_of,
    numbers,
    prepare,
    run_in_turns,
    spec_of,
    store_facts,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_LOADERS = ("overlap", "slow")
_KINDS = ("reader", "prefetcher", "supervisor", "trainer")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is run."""
    add_source_options(parser)
    add = parser.add_argument
    add("--files", type=int, default=8_000, help="different ones, of the short list (%(default)s)")
    add("--lengths", type=numbers, default=[8_000, 1_280_000], help="of the lists of files")
    add("--readers", type=numbers, default=[2, 4, 8, 16], help="file readers (2,4,8,16)")
    add("--batch-size", type=int, default=32, help="images in a mini-batch (%(default)s)")
    add("--batches", type=int, default=200, help="before memory is measured (%(default)s)")
    add("--loaders", type=names_of(_LOADERS), default=list(_LOADERS), help="some of them (both)")


def measure(options: argparse.Namespace, scratch: Path) -> dict:
    """Do all runs."""
    sources = prepare(options, scratch, options.files)
    points = [
        # The stock iterator is slow on the slow store: a quarter has to do.
        {"loader": loader, "n_readers": n_readers, "n_examples": n_examples,
         "n_batches": options.batches if loader == "overlap" else max(options.batches // 4, 1)}
        for n_examples in options.lengths for n_readers in options.readers
        for loader in options.loaders
    ]  # fmt: skip
    common = {"order": "own", "batch_size": options.batch_size, "measures_memory": True}
    specs = [spec_of(options, sources, **point, **common) for point in points]
    run_in_turns(points, specs, options)
    forget_checksums(points)
    return {"data": sources.label, **store_facts(options), "points": points}


def rows(result: dict) -> list[list[str]]:
    """Return a row for each loader, list and number of readers."""
    table = [["loader", "files", "readers", "first mini-batch, s", "[min, max]", "finalize, s"]]
    table[0] += [f"MB of a {kind}" for kind in _KINDS]
    for point in result["points"]:
        runs = point["runs"]
        first = spread(run["first_batch_seconds"] for run in runs)
        row = [point["loader"], f"{point['n_examples']:,}", str(point["n_readers"])]
        row += [f"{first['median']:.2f}", extremes(first)]
        row.append(f"{median(run['finalize_seconds'] for run in runs):.2f}")
        for kind in _KINDS:
            sizes = [size for run in runs for size in run["private_bytes"].get(kind, ())]
            row.append(f"{median(sizes) / 1e6:.1f}" if sizes else "-")
        table.append(row)
    return table


CLAIM = Claim(
    __doc__,
    add_options,
    measure,
    lambda result: aligned(rows(result)),
    quick={"files": 64, "lengths": [100], "readers": [3], "batches": 8, "repeats": 1},
    check=check_source_options,
    tables={"startup": rows},
)
