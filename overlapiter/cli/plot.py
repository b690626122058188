"""Draw an iterator's trace: what the trainer did, what the slow store gave, and what was ready.

The image shows at one look whether and when the trainer waited, and why: the store gave all it
could, or nothing was asked of it. --json prints each
step of what is drawn, and draws with --output only. Needs matplotlib: "overlapiter[plots]".

Examples:
  overlapiter plot out.json
  overlapiter plot out.json --output figure.svg
  overlapiter plot out.json --json | jq '.[0].waited'

exit code: 0, or 1 if the trace cannot be read, or matplotlib is missing
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .console import CommandError, add_figure
from .trace import read_trace

_STEPS = 100
#: Mini-batches that a step has at least, on average.
_STEP_BATCHES = 2
#: What is shown, as the events are called.
_WAIT, _READ, _READY, _SPEED = "wait", "read slow store", "mini-batches ready", "slow store, MB/s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a trace")
    add_figure(parser, " (default: beside the trace, .png)")
    parser.add_argument("--title", default="", help="what stands above it")


def run(arguments: argparse.Namespace) -> int:
    """Draw; return the exit code."""
    shown = (_WAIT, _READ, _READY, _SPEED)
    steps = steps_of([each for each in read_trace(arguments.file) if each["name"] in shown])
    if not steps:
        raise CommandError(
            f"{arguments.file} holds no mini-batch of an iterator; trace one for longer. "
            f"https://ui.perfetto.dev shows what is in it"
        )
    if arguments.json:
        print(json.dumps(steps))
    output = arguments.output or os.path.splitext(arguments.file)[0] + ".png"
    if arguments.output or not arguments.json:
        from .plots import draw_steps

        draw_steps(steps, arguments.title, output)
    if not arguments.json:
        print(output)
    return 0


def steps_of(events: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return what happened in each of up to a hundred steps of time.

    Args:
        events: Of a trace, in any order.

    Returns:
        For each step: ``seconds`` since the first mini-batch was asked for, the share of the time
        that the trainer ``waited``, ``reads`` of the slow store in flight, ``mb_per_second`` that
        it gave, and mini-batches ``ready``; the last two as they were known last.
    """
    waits = [event for event in events if event["ph"] == "X" and event["name"] == _WAIT]
    if not waits:
        return []
    begin = min(event["ts"] for event in waits)
    end = max(event["ts"] + event["dur"] for event in waits)
    reads = [event for event in events if event["ph"] == "X" and event["name"] == _READ]
    n_steps = max(1, min(_STEPS, len(waits) // _STEP_BATCHES))
    width = max(1.0, (end - begin) / n_steps)
    waited = _shares(waits, n_steps, begin, width)
    in_flight = _shares(reads, n_steps, begin, width)
    ready = _levels(events, _READY, n_steps, begin, width)
    speed = _levels(events, _SPEED, n_steps, begin, width)
    return [
        {
            "seconds": (step + 0.5) * width / 1e6,
            "waited": waited[step],
            "reads": in_flight[step],
            "mb_per_second": speed[step],
            "ready": ready[step],
        }
        for step in range(n_steps)
    ]


def _shares(events: list[dict[str, Any]], n_steps: int, begin: float, width: float) -> list[float]:
    """Return how much of each step the events cover, added up."""
    shares = [0.0] * n_steps
    for event in events:
        weight = event.get("args", {}).get("recorded_1_of", 1)
        left, right = event["ts"] - begin, event["ts"] + event["dur"] - begin
        for step in range(max(0, int(left // width)), min(n_steps, int(right // width) + 1)):
            covered = min(right, (step + 1) * width) - max(left, step * width)
            shares[step] += max(0.0, covered) / width * weight
    return shares


def _levels(
    events: list[dict[str, Any]], name: str, n_steps: int, begin: float, width: float
) -> list[float]:
    """Return the mean of a counter in each step; where it has none, that of the step before."""
    sums, numbers = [0.0] * n_steps, [0] * n_steps
    for event in events:
        step = int((event.get("ts", 0) - begin) // width)
        if event["ph"] == "C" and event["name"] == name and 0 <= step < n_steps:
            (value,) = event["args"].values()
            sums[step] += value
            numbers[step] += 1
    levels, last = [], 0.0
    for total, number in zip(sums, numbers, strict=True):
        last = total / number if number else last
        levels.append(last)
    return levels
