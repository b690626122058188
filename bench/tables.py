"""The tables of README and docs that show results: each is made from a JSON file.

A table stands between two comments, of which the first names the file and the table::

    <!-- table: thousand.json loaders -->
    ...
    <!-- end of table -->

Run it after a benchmark::

    python -m bench.tables             # writes all tables anew
    python -m bench.tables --check     # names the files in which one is not that of its JSON

"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.isolated import CHECKOUT
from bench.pipeline_targets import target_rows
from bench.spec import LOADER_MEANINGS
from bench.summary import ratio
from bench.training_table import markdown as training

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = CHECKOUT / "bench/results"
_BLOCK = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def documents() -> list[Path]:
    """Return all files that may show results."""
    return [CHECKOUT / "README.md", RESULTS / "README.md", *sorted(CHECKOUT.glob("docs/*.md"))]


def renewed(text: str) -> str:
    """Return a document with all its tables made anew."""

    def block(match: re.Match[str]) -> str:
        result = json.loads((RESULTS / match[2]).read_text())
        return f"{match[1]}{MAKERS[match[3]](result)}\n{match[4]}"

    return _BLOCK.sub(block, text)


def rows_to_markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table, the first row being the header."""
    header, *others = rows
    lines = [header, ["---"] * len(header), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def loaders(result: dict) -> str:
    """Return a row for each loader of ``bench.thousand``."""
    rows = [["loader", "images/s", "min to max", "of the floor", "times slow", "times local disk"]]
    rows[0].append("first mini-batch, s")
    for point in result["points"]:
        rate = point["summary"]["images_per_second"]
        row = [LOADER_MEANINGS[point["loader"]], f"{rate['median']:,.0f}"]
        row.append(f"{rate['min']:,.0f} to {rate['max']:,.0f}")
        for other, digits in (("floor", 2), ("slow", 1), ("fast", 2)):
            times = ratio(point, result["points"], other)
            row.append(f"{times:.{digits}f}" if times else "-")
        row.append(f"{point['summary']['first_batch_seconds']['median']:.2f}")
        rows.append(row)
    return rows_to_markdown(rows)


def pipeline(result: dict) -> str:
    """Return a row for each line of ``bench.pipeline``, with the CPU of each kind of process."""
    from bench.pipeline import MEANINGS

    size = result["options"]["batch_size"]
    kinds = [
        kind
        for kind in ("prefetcher", "supervisor", "reader", "trainer", "loop")
        if any(kind in run["cpu"] for point in result["points"] for run in point["runs"])
    ]
    rows = [["", "images/s", "after the first", "first, s", *(f"{kind}, µs" for kind in kinds)]]
    for point in result["points"]:
        names = ("images_per_second", "rate_after_first", "first_batch_seconds")
        rate, steady, first = (median(run[name] for run in point["runs"]) for name in names)
        row = [MEANINGS[point["name"]], f"{rate:,.0f}", f"{steady:,.0f}", f"{first:.2f}"]
        n_images = point["n_batches"] * size
        for kind in kinds:
            used = [run["cpu"][kind]["seconds"] for run in point["runs"] if kind in run["cpu"]]
            row.append(f"{median(used) / n_images * 1e6:.0f}" if used else "-")
        rows.append(row)
    return rows_to_markdown(rows)


def targets(result: dict) -> str:
    """Return what was measured beside what is wanted."""
    return rows_to_markdown(target_rows(result["targets"]))


MAKERS = {
    "loaders": loaders,
    "pipeline": pipeline,
    "targets": targets,
    "training": lambda result: training(result["points"]),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; with ``--check``, returns 1 if a table is not that of its JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    stale = [path for path in documents() if renewed(path.read_text()) != path.read_text()]
    for path in stale:
        if not options.check:
            path.write_text(renewed(path.read_text()))
        print(f"{path.relative_to(CHECKOUT)}: {'differs' if options.check else 'written'}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
