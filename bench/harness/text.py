"""Numbers as text, and tables."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Rows = Sequence[Sequence[str]]

ItemT = TypeVar("ItemT")


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    values = list(values)
    return {"median": median(values), "min": min(values), "max": max(values)}


def extremes(over: dict[str, float], digits: int = 2) -> str:
    """Return minimum and maximum of a spread."""
    return f"[{over['min']:.{digits}f}, {over['max']:.{digits}f}]"


def spread_of(point: dict, *keys: str) -> dict[str, float]:
    """Return the spread over the runs of a point; several keys lead into the run."""
    return spread(functools.reduce(operator.getitem, keys, run) for run in point["runs"])


def median_of(point: dict, *keys: str) -> float:
    """Return the median over the runs of a point, as :func:`spread_of`."""
    return spread_of(point, *keys)["median"]


def table(items: Iterable[ItemT], columns: Mapping[str, Callable[[ItemT], object]]) -> Rows:
    """Return a header and a row for each item; a column is its head and what makes its cells."""
    rows = [[str(cell(item)) for cell in columns.values()] for item in items]
    return [list(columns), *rows]


def aligned(rows: Rows) -> str:
    """Return rows as text in columns, the first row being the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(rows: Rows) -> str:
    """Return rows as a table of a document, the first row being the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
