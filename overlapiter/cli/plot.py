"""Draw an iterator's trace: what the trainer did, what the slow store gave, and what was ready.

The image shows at one look whether and when the trainer waited, and why: the store gave all it
could, or nothing was asked of it. --json prints each step of what is drawn, and draws with --output
only. Needs matplotlib: "overlapiter[plots]".

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

import numpy as np
import numpy.typing as npt

from .console import CommandError, add_figure
from .plots import draw_steps
from .trace import read_trace

Floats = npt.NDArray[np.float64]

_STEPS = 100
#: Mini-batches that a step has at least, on average.
_STEP_BATCHES = 2
_COUNTED_WITHIN_US = 1e6
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
        draw_steps(steps, arguments.title, output)
    if not arguments.json:
        print(output)
    return 0


def steps_of(events: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return what happened in each of up to a hundred steps of time, from events in any order.

    Returns:
        For each step: ``seconds`` since the first mini-batch was asked for, the share of the time
        that a trainer ``waited``, ``reads`` of the slow store in flight, ``mb_per_second`` that
        it gave, and mini-batches ``ready`` for a trainer; the last two as they were known last.
    """
    waits = [event for event in events if event["name"] == _WAIT and event["ph"] == "X"]
    if not waits:
        return []
    reads = [event for event in events if event["name"] == _READ and event["ph"] == "X"]
    begin = min(event["ts"] for event in waits)
    end = max(event["ts"] + event["dur"] for event in waits)
    n_steps = max(1, min(_STEPS, len(waits) // _STEP_BATCHES))
    edges = np.linspace(begin, max(end, begin + n_steps), n_steps + 1)
    n_trainers = len({event["pid"] for event in waits})
    columns = {
        "seconds": (edges[:-1] + edges[1:] - 2 * begin) / 2e6,
        "waited": _shares(waits, edges) / n_trainers,
        "reads": _shares(reads, edges),
        "mb_per_second": _levels(events, _SPEED, edges),
        "ready": _levels(events, _READY, edges) / n_trainers,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _shares(events: list[dict[str, Any]], edges: Floats) -> Floats:
    """Return how much of each step the events cover, added up."""
    spans = [(e["ts"], e["dur"], e.get("args", {}).get("recorded_1_of", 1)) for e in events]
    begin, took, weight = np.array(spans, float).reshape(-1, 3).T
    covered = np.array([np.clip(edge - begin, 0, took) @ weight for edge in edges])
    shares: Floats = np.diff(covered) / np.diff(edges)
    return shares


def _levels(events: list[dict[str, Any]], name: str, edges: Floats) -> Floats:
    """Return the mean of a counter in each step, added up over the processes that have one.

    Where a process has none, that of the step before, unless it counts no more: one that lives
    counts several times a second.
    """
    counts = [(e["pid"], e["ts"], *e["args"].values()) for e in events if e["name"] == name]
    pids, at, values = np.array(counts, float).reshape(-1, 3).T
    levels = np.zeros(len(edges) - 1)
    for pid in np.unique(pids):
        here = pids == pid
        sums, n = (np.histogram(at[here], edges, weights=w)[0] for w in (values[here], None))
        last = np.maximum.accumulate(np.where(n > 0, np.arange(len(n)), -1))
        is_over = edges[:-1] > at[here].max() + _COUNTED_WITHIN_US
        levels += np.where((last < 0) | is_over, 0.0, (sums / np.maximum(n, 1))[last])
    return levels
