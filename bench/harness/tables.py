"""What follows from the numbers of runs: medians, targets that are met or missed, tables."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import mean, median, stdev
from types import SimpleNamespace
from typing import Any

Rows = Sequence[Sequence[str]]

#: Student's t for 95% on both sides, by the number of values; at most 2.23 for more.
_STUDENT = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """Return median, minimum and maximum; they are NaN where one was not measured, but is None."""
    found = list(values)
    found = [float("nan")] if None in found else found
    return {"median": median(found), "min": min(found), "max": max(found)}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the interval of 95% around it; infinite for a single value."""
    n = len(values)
    error = _STUDENT.get(n, 2.23) * stdev(values) / n**0.5 if n > 1 else float("inf")
    return mean(values), error


def median_of(point: dict, key: str) -> float:
    """Return the median of a number over the runs of a point."""
    return spread(run[key] for run in point["runs"])["median"]


def number_of(key: str) -> Callable[..., float]:
    """Return what gives a number of a run, or where there are two, as a share of the other's."""
    return lambda run, *others: run[key] / others[0][key] if others else run[key]


class _OfRuns(SimpleNamespace):
    """Median, minimum and maximum of a number of all runs of a point, shown as the median."""

    def __format__(self, form: str) -> str:
        return format(self.median, form)


class _Facts(dict[str, Any]):
    """What a point says, and what its runs have measured."""

    def __missing__(self, name: str) -> _OfRuns:
        return _OfRuns(**spread(run[name] for run in self["runs"]))


#: The columns of a table: of each its head, and what makes the cell of an item: a function, or of a
#: point a format, in which a number of its runs is their median, or as ``{x.min}`` their minimum.
Columns = Mapping[str, str | Callable[[Any], object]]


def table(items: Iterable[Any], columns: Columns) -> Rows:
    """Return a header and a row for each item, with ``-`` for a number that was not measured."""

    def cell(item: Any, column: str | Callable[[Any], object]) -> str:
        text = column.format_map(_Facts(item)) if isinstance(column, str) else str(column(item))
        return "-" if text == "nan" else text

    return [list(columns), *([cell(item, each) for each in columns.values()] for item in items)]


def rows_in(result: dict, kind: Columns | Callable[[dict], Rows]) -> Rows:
    """Return a table of a result, of which a claim has the columns, or what makes the rows."""
    return kind(result) if callable(kind) else table(result.get("points", ()), kind)


def markdown(rows: Rows) -> str:
    """Return rows as a table of a document, the first row being the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- what was measured beside what is wanted; the median over the repeats counts ------------------

#: What it is; its unit; what is wanted, the most where there is a unit, else the least, or None
#: where the number only explains others; the names of what is compared; and what makes a number of
#: their runs in one repeat, or its name in a run, or in both of two, whose ratio it is.
Wanted = tuple[str, str, float | None, Sequence[Hashable], str | Callable[..., float]]


def compared(targets: Iterable[Wanted], runs: Mapping[Hashable, Sequence[dict]]) -> list[dict]:
    """Return those targets of which everything that is compared has run; ``runs`` are by name."""
    found = []
    for what, unit, wanted, names, value_of in targets:
        if runs.keys() >= set(names):
            compare = number_of(value_of) if isinstance(value_of, str) else value_of
            # Within a repeat, since a machine's speed drifts.
            values = [compare(*each) for each in zip(*map(runs.get, names), strict=True)]
            over, is_met = spread(values), None
            if wanted is not None:
                is_met = over["median"] <= wanted if unit else over["median"] >= wanted
            facts = {"what": what, "unit": unit, "wanted": wanted, "values": values}
            found.append({**facts, **over, "is_met": is_met})
    return found


def target_rows(result: dict) -> list[list[str]]:
    """Return a row for each of the ``targets`` of a result, after a header."""
    rows = [["", "measured", "[min, max]", "wanted", ""]]
    for target in result["targets"]:
        digits = 0 if target["unit"] == "µs" else 2
        unit = f" {target['unit']}" if target["unit"] else ""
        wanted = "" if target["wanted"] is None else f"{target['wanted']:.{digits}f}{unit}"
        word = {True: "met", False: "missed", None: ""}[target["is_met"]]
        middle = f"{target['median']:.{digits}f}{unit}"
        ends = f"[{target['min']:.{digits}f}, {target['max']:.{digits}f}]"
        rows.append([target["what"], middle, ends, wanted, word])
    return rows


def missed(result: dict) -> list[str]:
    """Return which ``targets`` were missed, in words; none by runs that only show that they run."""
    rows = [] if result["options"]["quick"] else target_rows(result)[1:]
    return [f"{row[0]}: {row[1]}, wanted {row[3]}" for row in rows if row[4] == "missed"]
