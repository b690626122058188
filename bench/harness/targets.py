"""What was measured beside what is wanted; the median over the repeats counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from bench.harness.text import extremes, spread

#: What it is, its unit, what is wanted, the names of what is compared, and what makes a number of
#: their runs in one repeat.
Wanted = tuple[str, str, float | None, Sequence[Hashable], Callable[..., float]]


def target_of(what: str, unit: str, wanted: float | None, values: Sequence[float]) -> dict:
    """Return a target with the numbers that follow from its values, one for each repeat.

    ``wanted`` is the most where there is a unit, else the least; with None the number only explains
    the others.
    """
    over = spread(values)
    is_met = None
    if wanted is not None:
        is_met = over["median"] <= wanted if unit else over["median"] >= wanted
    facts = {"what": what, "unit": unit, "wanted": wanted, "values": list(values)}
    return {**facts, **over, "is_met": is_met}


def compared(wanted: Iterable[Wanted], runs: Mapping[Hashable, Sequence[dict]]) -> list[dict]:
    """Return those targets of which everything that is compared has run; ``runs`` are by name."""
    return [
        target_of(
            what, unit, most, [value_of(*row) for row in zip(*map(runs.get, names), strict=True)]
        )
        for what, unit, most, names, value_of in wanted
        if runs.keys() >= set(names)
    ]


def target_rows(result: dict) -> list[list[str]]:
    """Return a row for each of the ``targets`` of a result, after a header."""
    rows = [["", "measured", "[min, max]", "wanted", ""]]
    for target in result["targets"]:
        digits = 0 if target["unit"] == "µs" else 2
        unit = f" {target['unit']}" if target["unit"] else ""
        wanted = "" if target["wanted"] is None else f"{target['wanted']:.{digits}f}{unit}"
        word = {True: "met", False: "missed", None: ""}[target["is_met"]]
        middle = f"{target['median']:.{digits}f}{unit}"
        rows.append([target["what"], middle, extremes(target, digits), wanted, word])
    return rows


def missed_unless_quick(result: dict) -> list[str]:
    """Return the same, or nothing of runs that only show that they run."""
    return [] if result["options"]["quick"] else missed(result)


def missed(result: dict) -> list[str]:
    """Return which of the ``targets`` of a result were missed, in words."""
    rows = zip(result["targets"], target_rows(result)[1:], strict=True)
    return [
        f"{what}: {measured}, wanted {wanted}"
        for target, (what, measured, _, wanted, _) in rows
        if target["is_met"] is False
    ]
