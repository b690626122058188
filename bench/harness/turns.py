"""Runs in turns, with a progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from tqdm import tqdm

from bench.harness import isolated


def progress_bar(total: int, unit: str) -> tqdm:
    """Return a bar on standard error, which shows nothing where that is no terminal."""
    tqdm.monitor_interval = 0  # no thread beside what is measured
    return tqdm(total=total, unit=unit, disable=None)


def name_of(point: dict) -> str:
    """Return how a point is called in short; empty if it has no name."""
    return point.get("name") or point.get("loader", "")


def take_turns(points: Sequence[dict], n_repeats: int, run: Callable[[dict], object]) -> None:
    """Run every point so many times, and add what each run gives to the ``runs`` of its point.

    There and back, so that a drift of the machine's speed favours no point.
    """
    n_runs = len(points) * n_repeats
    print(f"{n_runs} runs follow", file=sys.stderr, flush=True)  # there may be no progress bar
    with progress_bar(n_runs, "run") as progress:
        for repeat in range(n_repeats):
            for point in points[:: (-1) ** repeat]:
                progress.set_description(name_of(point))
                os.sync()  # what the run before wrote is not to slow down this one
                point.setdefault("runs", []).append(run(point))
                progress.update()


def call_in_turns(
    points: Sequence[dict], n_repeats: int, function: Callable[[dict], dict], **common: object
) -> None:
    """Call a function in turns with a point and ``common``, each time in a process of its own."""
    take_turns(
        points, n_repeats, lambda point: isolated.call(function, {**common, **point, "runs": None})
    )


def wrong_arrays(result: dict) -> list[str]:
    """Return which loaders gave other arrays than the examples in memory, as ``is_same`` tells."""
    runs = [(point["loader"], run) for point in result["points"] for run in point["runs"]]
    return [f"{loader}: the arrays are wrong" for loader, run in runs if not run["is_same"]]
