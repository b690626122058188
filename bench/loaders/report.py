"""The tables of loaders that build the same mini-batches: rates, parts of a reader's time, CPU."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from bench.harness.targets import target_rows
from bench.harness.text import aligned, extremes, spread
from bench.loaders.spec import LOADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARTS = {
    "initialize": "initialize",
    "dequeue": "dequeue an index list",
    "fetch": "fetch data",
    "others": "others",
}
#: Kinds of processes whose CPU counts most, in this order.
_KINDS = ("prefetcher", "supervisor", "reader", "trainer", "loop")


def summarize(point: dict) -> dict[str, object]:
    """Return the statistics over the runs of one point."""
    runs = point["runs"]
    names = ("images_per_second", "rate_after_first", "first_batch_seconds", "trainer_cpu_seconds")
    summary: dict[str, object] = {name: spread(run[name] for run in runs) for name in names}
    if all(run["parts"] for run in runs):
        summary["parts"] = {name: median(run["parts"][name] for run in runs) for name in PARTS}
    if all(run["waits_seconds"] for run in runs):
        waits = np.concatenate([run["waits_seconds"] for run in runs])
        percentiles = np.percentile(waits, (50, 99, 100)).tolist()
        summary["wait_seconds"] = dict(zip(("median", "p99", "max"), percentiles, strict=True))
    return summary


def ratio(point: dict, points: Sequence[dict], loader: str) -> float | None:
    """Return how many times as fast as ``loader`` a point is; None where that did not run.

    It is compared with the one that had the same number of readers, if there is one. Runs of the
    same repeat are compared, and the median is returned: the speed of a machine drifts.
    """
    found = [other for other in points if other["loader"] == loader]
    same = [other for other in found if other["n_readers"] == point["n_readers"]]
    if not found:
        return None
    pairs = zip(point["runs"], (same or found)[0]["runs"], strict=True)
    return median(run["images_per_second"] / other["images_per_second"] for run, other in pairs)


def meaning_of(point: dict) -> str:
    """Return what a point is, in words."""
    return LOADERS[point["loader"]] + point.get("note", "")


def name_of(point: dict) -> str:
    """Return how a point is called in what is printed."""
    return point.get("name") or point["loader"]


def show(result: dict) -> str:
    """Return everything that is printed at the end, as text."""
    points, options = result["points"], result["options"]
    head = f"page cache of the source: {result['page_cache']}; medians of {options['repeats']} runs"
    meanings = dict.fromkeys(f"{name_of(point)}: {meaning_of(point)}" for point in points)
    parts = "Seconds of the mean file reader process, and the trainer's CPU seconds"
    cpu = "Microseconds of CPU for an image, by kind of process, the start of each included"
    sections = [head + ", ratios within a repeat", "\n".join(meanings), _rates(points)]
    sections += [f"{parts}:\n{_parts(points)}", f"{cpu}:\n{aligned(cpu_rows(result, name_of))}"]
    if "targets" in result:
        sections.append(aligned(target_rows(result)))
    if not faults(result):
        compared = result["verified"]["batches"]
        sections.append(f"All loaders delivered the same examples ({compared} mini-batches).")
    return "\n\n".join(sections)


def faults(result: dict) -> list[str]:
    """Return which loaders delivered other examples than the reference."""
    different = result["verified"]["different"]
    return [f"DIFFERENT EXAMPLES by {name}: {positions}" for name, positions in different.items()]


def _rates(points: Sequence[dict]) -> str:
    rows = [["", "prefetch.", "readers", "batches", "images/s", "[min, max]", "after first"]]
    rows[0] += ["/floor", "/slow", "/fast", "first s", "wait ms: median", "p99", "max", "opens"]
    for point in points:
        summary = point.get("summary") or summarize(point)
        rate, steady, first = (
            summary[name]
            for name in ("images_per_second", "rate_after_first", "first_batch_seconds")
        )
        numbers = (str(point[name] or "-") for name in ("n_prefetchers", "n_readers", "n_batches"))
        row = [name_of(point), *numbers, f"{rate['median']:.0f}", extremes(rate, 0)]
        row.append(f"{steady['median']:.0f}")
        for other in ("floor", "slow", "fast"):
            times = ratio(point, points, other)
            row.append(f"{times:.2f}" if times else "-")
        waits = summary.get("wait_seconds", {})
        row.append(f"{first['median']:.2f}")
        row += [f"{waits[key] * 1e3:.1f}" if waits else "-" for key in ("median", "p99", "max")]
        opens = point["runs"][0]["store_opens"]
        rows.append([*row, "-" if opens is None else str(opens)])
    return aligned(rows)


def _parts(points: Sequence[dict]) -> str:
    rows = [["", "prefetch.", "readers", *PARTS.values(), "trainer CPU"]]
    for point in points:
        summary = point.get("summary") or summarize(point)
        parts = summary.get("parts")
        cells = [f"{parts[name]:.2f}" if parts else "-" for name in PARTS]
        counts = (str(point[name] or "-") for name in ("n_prefetchers", "n_readers"))
        cpu = summary["trainer_cpu_seconds"]["median"]
        rows.append([name_of(point), *counts, *cells, f"{cpu:.2f}"])
    return aligned(rows)


def cpu_rows(result: dict, words: Callable[[dict], str] = meaning_of) -> list[list[str]]:
    """Return what each kind of process used of the CPU for an image, in microseconds."""
    runs = [run for point in result["points"] for run in point["runs"]]
    found = dict.fromkeys(kind for run in runs for kind in run["cpu"])
    kinds = [*(kind for kind in _KINDS if kind in found), *sorted(found.keys() - set(_KINDS))]
    rows = [["", *(f"{kind}, µs" for kind in kinds), "all, µs"]]
    for point in result["points"]:
        n_images = point["n_batches"] * result["options"]["batch_size"]
        by_kind = [
            median(run["cpu"].get(kind, {}).get("seconds", 0) for run in point["runs"])
            for kind in kinds
        ]
        numbers = [seconds / n_images * 1e6 for seconds in (*by_kind, sum(by_kind))]
        rows.append([words(point), *(f"{number:.0f}" if number else "-" for number in numbers)])
    return rows


def rate_rows(result: dict) -> list[list[str]]:
    """Return a row for each point: its rate beside those of the floor and the stock iterator."""
    rows = [["loader", "mini-batches", "images/s", "min to max", "of the floor"]]
    rows[0] += ["times slow", "times local disk", "first mini-batch, s"]
    for point in result["points"]:
        rate, first = (
            spread(run[name] for run in point["runs"])
            for name in ("images_per_second", "first_batch_seconds")
        )
        row = [meaning_of(point), str(point["n_batches"]), f"{rate['median']:,.0f}"]
        row.append(f"{rate['min']:,.0f} to {rate['max']:,.0f}")
        for other, digits in (("floor", 2), ("slow", 1), ("fast", 2)):
            times = ratio(point, result["points"], other)
            row.append(f"{times:.{digits}f}" if times else "-")
        rows.append([*row, f"{first['median']:.2f}"])
    return rows
