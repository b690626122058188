"""Numbers as text."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Rows = Sequence[Sequence[str]]


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    values = list(values)
    return {"median": median(values), "min": min(values), "max": max(values)}


def extremes(over: dict[str, float], digits: int = 2) -> str:
    """Return minimum and maximum of a spread."""
    return f"[{over['min']:.{digits}f}, {over['max']:.{digits}f}]"


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
