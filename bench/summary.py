"""Medians of the runs, and the tables that are printed."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from bench.spec import LOADER_MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME_HEADER = ("loader", "prefetch.", "readers", "batches")
PART_NAMES = ("initialize", "dequeue", "fetch", "others")


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    values = list(values)
    return {"median": median(values), "min": min(values), "max": max(values)}


def summarize(point: dict) -> dict[str, object]:
    """Return the statistics over the runs of one point of the benchmark."""
    runs = point["runs"]
    summary: dict[str, object] = {
        name: spread(run[name] for run in runs)
        for name in ("images_per_second", "first_batch_seconds", "trainer_cpu_seconds")
    }
    if all(run["parts"] for run in runs):
        summary["parts"] = {name: median(run["parts"][name] for run in runs) for name in PART_NAMES}
    if all(run["waits_seconds"] for run in runs):
        waits = np.concatenate([run["waits_seconds"] for run in runs])
        percentiles = np.percentile(waits, (50, 99, 100))
        summary["wait_seconds"] = dict(
            zip(("median", "p99", "max"), percentiles.tolist(), strict=True)
        )
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


def tables(result: dict) -> str:
    """Return everything that is printed at the end, as text."""
    options, machine, points = result["options"], result["machine"], result["points"]
    head = [
        f"{options['n_batches']} mini-batches of {options['batch_size']}, {result['data']}",
        f"{result['store']}; page cache of the source: {result['page_cache']}",
        f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}; "
        f"median of {options['repeats']} interleaved runs [min, max], ratios within a repeat",
    ]
    meanings = [
        f"{loader}: {meaning}"
        for loader, meaning in LOADER_MEANINGS.items()
        if any(point["loader"] == loader for point in points)
    ]
    parts = "Seconds of the mean file reader process, and the trainer's CPU seconds"
    checked = result["verified"]
    verdict = (
        f"All loaders delivered the same examples ({checked['batches']} mini-batches compared)."
        if not checked["different"]
        else f"DIFFERENT EXAMPLES were delivered: {checked['different']}"
    )
    sections = ["\n".join(head), "\n".join(meanings), _speeds(points)]
    sections += [f"{parts}:\n{_parts(points)}", verdict]
    return "\n\n".join(sections) + "\n"


def _speeds(points: Sequence[dict]) -> str:
    header = [*_NAME_HEADER, "images/s", "[min, max]"]
    header += ["/floor", "/slow", "/fast", "first batch s", "wait ms: median", "p99", "max"]
    rows = [header]
    for point in points:
        summary = point["summary"]
        rate = summary["images_per_second"]
        row = [*_name(point), f"{rate['median']:.0f}", f"[{rate['min']:.0f}, {rate['max']:.0f}]"]
        for other in ("floor", "slow", "fast"):
            times = ratio(point, points, other)
            row.append(f"{times:.2f}" if times else "-")
        row.append(f"{summary['first_batch_seconds']['median']:.2f}")
        waits = summary.get("wait_seconds", {})
        row += [f"{waits[key] * 1e3:.1f}" if waits else "-" for key in ("median", "p99", "max")]
        rows.append(row)
    return aligned(rows)


def _parts(points: Sequence[dict]) -> str:
    rows = [
        [
            *_NAME_HEADER,
            "initialize",
            "dequeue an index list",
            "fetch data",
            "others",
            "trainer CPU",
        ]
    ]
    for point in points:
        parts = point["summary"].get("parts")
        cells = [f"{parts[name]:.2f}" if parts else "-" for name in PART_NAMES]
        cpu = point["summary"]["trainer_cpu_seconds"]["median"]
        rows.append([*_name(point), *cells, f"{cpu:.2f}"])
    return aligned(rows)


def _name(point: dict) -> list[str]:
    has_prefetchers = point["loader"].startswith("overlap")
    prefetchers = str(point["n_prefetchers"]) if has_prefetchers else "-"
    return [point["loader"], prefetchers, str(point["n_readers"]), str(point["n_batches"])]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns, the first row being the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)
