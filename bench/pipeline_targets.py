"""What the pipeline has to reach, worked out from the runs of ``bench.pipeline``.

Runs of the same repeat are compared, and the median over the repeats counts: the speed of a
machine drifts.
"""

from __future__ import annotations

import dataclasses
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RATE, STEADY, FIRST = "images_per_second", "rate_after_first", "first_batch_seconds"


@dataclasses.dataclass(frozen=True)
class Target:
    """A number that was measured, and what it has to be.

    Attributes:
        what: In words.
        unit: Of the numbers; empty for a share.
        wanted: The most that it may be where there is a unit, else the least; None where nothing
            is wanted and the number only explains the others.
        values: One for each repeat.
        median: Of the values.
        min: The smallest value.
        max: The greatest value.
        is_met: Whether the median is as good as wanted; None where nothing is.
    """

    what: str
    unit: str
    wanted: float | None
    values: tuple[float, ...]
    median: float
    min: float
    max: float
    is_met: bool | None


def target_of(what: str, unit: str, wanted: float | None, values: Sequence[float]) -> Target:
    """Return a target with the numbers that follow from its values."""
    middle = median(values)
    is_met = None
    if wanted is not None:
        is_met = middle <= wanted if unit else middle >= wanted
    return Target(what, unit, wanted, tuple(values), middle, min(values), max(values), is_met)


def targets(points: Sequence[dict]) -> list[Target]:
    """Return all targets of which both sides were measured."""
    runs = {point["name"]: point["runs"] for point in points}
    n_images = {point["name"]: point["n_batches"] * len_of_batch(point) for point in points}
    found = []
    for what, unit, wanted, names, of_runs in _TARGETS:
        if all(name in runs for name in names):
            sizes = [n_images[name] for name in names]
            columns = zip(*(runs[name] for name in names), strict=True)
            found.append(target_of(what, unit, wanted, [of_runs(sizes, *row) for row in columns]))
    return found


def len_of_batch(point: dict) -> float:
    """Return how many images a mini-batch of this point has."""
    run = point["runs"][0]
    return round(run[RATE] * run["wall_seconds"] / point["n_batches"])


def _share(key: str) -> Callable[..., float]:
    return lambda _sizes, one, other: one[key] / other[key]


def _cpu_us(kind: str) -> Callable[..., float]:
    return lambda sizes, run: _seconds(run, kind) / sizes[0] * 1e6


def _seconds(run: dict, kind: str) -> float:
    return run["cpu"].get(kind, {}).get("seconds", 0.0)


def _prefetchers_us(_sizes: Sequence[int], run: dict) -> float:
    """Return what staging one file cost the prefetchers."""
    return _seconds(run, "prefetcher") / max(run["statistics"]["files_staged"], 1) * 1e6


def _reader_beyond_us(sizes: Sequence[int], run: dict, loops: dict) -> float:
    """Return what a reader used for an image beyond what the loops did."""
    return (_seconds(run, "reader") / sizes[0] - _seconds(loops, "loop") / sizes[1]) * 1e6


def _less_cpu(sizes: Sequence[int], run: dict, limit: dict) -> float:
    """Return the CPU of all processes for an image of ``limit``, as a share of that of ``run``."""
    totals = (sum(kind["seconds"] for kind in each["cpu"].values()) for each in (run, limit))
    own, least = (total / size for total, size in zip(totals, sizes, strict=True))
    return least / own


def _first(_sizes: Sequence[int], run: dict) -> float:
    return run[FIRST]


# What it is, its unit, what is wanted, the lines of bench.pipeline, and the number.
_TARGETS: tuple[tuple[str, str, float | None, tuple[str, ...], Callable[..., float]], ...] = (
    ("prefetchers, a staged file, local source", "µs", 80, ("from local",), _prefetchers_us),
    ("prefetchers, a staged file, slow store", "µs", 140, ("cold",), _prefetchers_us),
    ("supervisor, an image, cold", "µs", 35, ("cold",), _cpu_us("supervisor")),
    ("supervisor, an image, staged", "µs", 35, ("staged",), _cpu_us("supervisor")),
    ("reader beyond dataset[i], staged", "µs", 10, ("staged", "loops"), _reader_beyond_us),
    ("reader beyond dataset[i], cold", "µs", 10, ("cold", "loops"), _reader_beyond_us),
    ("cold / ceiling, after the first", "", 0.85, ("cold", "ceiling"), _share(STEADY)),
    ("staged / loops, after the first", "", 0.95, ("staged", "loops"), _share(STEADY)),
    ("local / loops, after the first", "", None, ("local", "loops"), _share(STEADY)),
    ("cold / ceiling, all included", "", None, ("cold", "ceiling"), _share(RATE)),
    ("staged / loops, all included", "", None, ("staged", "loops"), _share(RATE)),
    # On a busy machine, rates say little; where the cores are the limit, this says the same.
    ("cold / ceiling, by CPU of all", "", None, ("cold", "ceiling"), _less_cpu),
    ("staged / loops, by CPU of all", "", None, ("staged", "loops"), _less_cpu),
    ("cold / stock on the slow store", "", 15, ("cold", "stock, slow store"), _share(RATE)),
    ("cold / stock on the local disk", "", 2.2, ("cold", "stock, local"), _share(RATE)),
    ("12 prefetchers / default", "", 0.95, ("cold, 12 prefetchers", "cold"), _share(RATE)),
    ("16 readers / 2 readers", "", 0.9, ("cold, 16 readers", "cold"), _share(RATE)),
    ("16 / 2 readers, after the first", "", 0.9, ("cold, 16 readers", "cold"), _share(STEADY)),
    ("first mini-batch, 2 readers", "s", 0.45, ("cold",), _first),
    ("first, 16 readers, 12 prefetchers", "s", 0.45, ("first of 16 and 12",), _first),
)


def target_rows(found: Sequence[dict]) -> list[list[str]]:
    """Return what was measured beside what is wanted, the first row being the header.

    Args:
        found: Targets, as the JSON file has them.
    """
    rows = [["", "measured", "[min, max]", "wanted", ""]]
    for target in found:
        digits = 0 if target["unit"] == "µs" else 2
        unit = f" {target['unit']}" if target["unit"] else ""
        middle, low, high = (f"{target[name]:.{digits}f}" for name in ("median", "min", "max"))
        wanted = "" if target["wanted"] is None else f"{target['wanted']:.{digits}f}{unit}"
        word = {True: "met", False: "missed", None: ""}[target["is_met"]]
        rows.append([target["what"], f"{middle}{unit}", f"[{low}, {high}]", wanted, word])
    return rows
