"""Numbers as text, and tables."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median, stdev
from typing import TypeVar

Rows = Sequence[Sequence[str]]

ItemT = TypeVar("ItemT")

#: Student's t for 95% on both sides, by the number of values; at most 2.23 for more.
_STUDENT = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    values = list(values)
    return {"median": median(values), "min": min(values), "max": max(values)}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the interval of 95% around it; infinite for a single value."""
    n = len(values)
    error = _STUDENT.get(n, 2.23) * stdev(values) / n**0.5 if n > 1 else float("inf")
    return mean(values), error


def extremes(over: dict[str, float], digits: int = 2) -> str:
    """Return minimum and maximum of a spread."""
    return f"[{over['min']:.{digits}f}, {over['max']:.{digits}f}]"


def spread_of(point: dict, *keys: str) -> dict[str, float]:
    """Return the spread over the runs of a point; several keys lead into the run."""
    return spread(functools.reduce(operator.getitem, keys, run) for run in point["runs"])


def median_of(point: dict, *keys: str) -> float:
    """Return the median over the runs of a point, as :func:`spread_of`."""
    return spread_of(point, *keys)["median"]


def by_repeat(value_of: Callable[..., float], *points: dict) -> list[float]:
    """Return for each repeat what a function makes of the runs of some points in it.

    Runs of the same repeat are compared, since the speed of a machine drifts.
    """
    return [value_of(*runs) for runs in zip(*(point["runs"] for point in points), strict=True)]


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
