"""Prints the table of data-parallel training for the README, from the JSON files.

Run it after ``bench.data_parallel``::

    python -m bench.training_table bench/results/data-parallel.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.isolated import CHECKOUT
from bench.training_spec import LOADER_MEANINGS

if TYPE_CHECKING:
    from collections.abc import Sequence


def markdown(points: Sequence[dict]) -> str:
    """Return a row for each loader, with seconds and share of waiting of each epoch and size."""
    sizes = sorted({(point["n_nodes"], point["n_ranks"]) for point in points})
    epochs = range(len(points[0]["summary"]))
    header = ["seconds of an epoch (waiting)"]
    header += [f"{_words(*size)}, epoch {epoch + 1}" for size in sizes for epoch in epochs]
    rows = [header, ["---"] * len(header)]
    for loader, meaning in LOADER_MEANINGS.items():
        found = {
            (point["n_nodes"], point["n_ranks"]): point["summary"]
            for point in points
            if point["loader"] == loader
        }
        if found:
            cells = [_cell(found.get(size), epoch) for size in sizes for epoch in epochs]
            rows.append([meaning, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _words(n_nodes: int, n_ranks: int) -> str:
    ranks = f"{n_ranks} rank" + "s" * (n_ranks > 1)
    return ranks if n_nodes == 1 else f"{n_nodes} nodes, {ranks} each"


def _cell(summary: list[dict] | None, epoch: int) -> str:
    if summary is None:
        return "-"
    return f"{summary[epoch]['seconds']['median']:.1f} ({summary[epoch]['wait_share']:.0%})"


def read_results(description: str | None, arguments: list[str] | None) -> dict[Path, dict]:
    """Return the results that a command line names, by file; those in ``bench/results`` if none."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = CHECKOUT / "bench/results/data-parallel.json"
    parser.add_argument("results", type=Path, nargs="*", help=f"JSON files ({default.name})")
    paths = parser.parse_args(arguments).results or [default]
    return {path: json.loads(path.read_text()) for path in paths}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    results = read_results(__doc__, arguments).values()
    print(markdown([point for result in results for point in result["points"]]))


if __name__ == "__main__":
    main()
