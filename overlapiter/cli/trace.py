"""Sum up traces: which process did what for how long; and join those of several ranks to one file.

`overlapiter.OverlapIterator(..., trace="out.json")`, `with overlapiter.trace("out.json")` and
`overlapiter train --trace` write them, one file for each rank. https://ui.perfetto.dev shows them;
it opens one file at a time, so join those of several ranks first: up to 16, if they are full.

Examples:
  overlapiter trace out.json
  overlapiter trace out.json out.rank*.json --output all.json
  overlapiter trace out.json --json | jq '.spans[] | select(.name == "wait")'

exit code: 0, or 1 if a file cannot be read, or holds no trace
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from overlapiter.words import count_words, duration_words, size_words

from .console import CommandError, UsageError, printable, say, table, tell, written

Event = dict[str, Any]
Facts = dict[str, Any]
Keep = Callable[[str], object]

#: What each of our events has.
_HAVE_ALL = {"ph", "name", "ts", "pid"}
#: What web browsers open: that of 16 ranks, and some more.
_OPENS_BYTES = 300_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace; one of each rank")
    parser.add_argument("--output", metavar="JOINED", help="write all events to this file, too")


def run(arguments: argparse.Namespace) -> int:
    """Sum up, and join; return the exit code."""
    output = arguments.output and os.path.realpath(arguments.output)
    if output in map(os.path.realpath, arguments.files):
        raise UsageError("--output is one of the traces; give another name")
    joined = _joined(arguments.output) if arguments.output else contextlib.nullcontext()
    with joined as keep:
        summary = summarize(event for path in arguments.files for event in read_trace(path, keep))
    tell(arguments, _words(summary), **summary)
    return 0


@contextlib.contextmanager
def _joined(path: str) -> Iterator[Keep]:
    """Give what writes events to a file, which is there once it is complete JSON."""
    with written(path) as file:
        before = iter(["[\n"])
        yield lambda text: file.write((next(before, ",\n") + text).encode())
        file.write(b"\n]\n")
    size_bytes = os.path.getsize(path)
    if size_bytes > _OPENS_BYTES:
        say(
            f"note: {path} has {size_words(size_bytes)}, too much for a web browser: join fewer "
            f"ranks, or start Perfetto's `trace_processor --httpd {path}` beside it"
        )


def read_trace(path: str, keep: Keep | None = None) -> Iterator[Event]:
    """Give the events of a trace, one after the other: all of them may not fit into memory.

    ``keep`` is called with the text of each: writing it anew would take several times as long.

    Raises:
        CommandError: It is none.
    """
    is_trace = False
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.strip().removesuffix(",")
            if text in ("", "[", "]"):
                continue
            with contextlib.suppress(json.JSONDecodeError):  # cut off, by a full disk
                event = json.loads(text)
                is_trace = isinstance(event, dict) and event.keys() >= _HAVE_ALL
                if not is_trace:
                    break
                if keep is not None:
                    keep(text)
                yield event
    if not is_trace:
        raise CommandError(f"{path} holds no trace; name a file that overlapiter wrote")


def summarize(events: Iterable[Event]) -> Facts:
    """Sum up the events of a trace, those counted that a long one left out.

    Returns:
        The ``seconds`` from the first to the last event; ``n_events``; ``n_dropped``, those that
        were left out for size; and ``spans``: all that a ``process`` did under one ``name``, with
        its ``number``, its ``seconds``, their ``share`` of the whole time, which is above 1 where
        several rows did it at the same time, ``median_seconds`` and ``p99_seconds``.
    """
    names: dict[int, tuple[int, str]] = {}
    took: dict[tuple[int, str], array[float]] = defaultdict(lambda: array("d"))  # and the weights
    first, last, n_events, n_dropped = float("inf"), 0.0, 0, 0
    for event in events:
        n_events += 1
        pid, args = event["pid"], event.get("args", {})
        if event["ph"] == "M":
            order, name = names.get(pid, (0, str(pid)))
            names[pid] = args.get("sort_index", order), args.get("name", name)
            if event["name"] == "thread_name":
                names[pid] = order, name
            continue
        begin, duration = float(event["ts"]), float(event.get("dur", 0))
        first, last = min(first, begin), max(last, begin + duration)
        if event["ph"] == "X":
            took[pid, event["name"]].extend((duration / 1e6, args.get("recorded_1_of", 1)))
        n_dropped += args.get("left_out", 0)
    seconds = max(0.0, (last - first) / 1e6) if took else 0.0
    keys = sorted(took, key=lambda key: (*names.get(key[0], (0, "")), key))
    spans = [
        {
            "process": names.get(pid, (0, str(pid)))[1],
            "name": name,
            **_times(took[pid, name], seconds),
        }
        for pid, name in keys
    ]
    return {"seconds": seconds, "n_events": n_events, "n_dropped": n_dropped, "spans": spans}


def _times(took: array[float], whole_seconds: float) -> Facts:
    durations, weights = np.array(took).reshape(-1, 2).T
    seconds = float(durations @ weights)
    by_duration = np.argsort(durations)
    n_until = np.cumsum(weights[by_duration])
    found = np.searchsorted(n_until, np.array([0.5, 0.99]) * n_until[-1])
    median_seconds, p99_seconds = durations[by_duration[found]].tolist()
    return {
        "number": round(sum(weights)),
        "seconds": seconds,
        "share": seconds / whole_seconds if whole_seconds else 0.0,
        "median_seconds": median_seconds,
        "p99_seconds": p99_seconds,
    }


def _words(summary: Facts) -> str:
    rows = [
        (
            printable(each["process"]),
            printable(each["name"]),
            f"{each['number']:,}",
            duration_words(each["seconds"]),
            f"{each['share']:.0%}",
            duration_words(each["median_seconds"]),
            duration_words(each["p99_seconds"]),
        )
        for each in summary["spans"]
    ]
    head = ("process", "what", "times", "took", "of the time", "each", "99% below")
    n_dropped, seconds = summary["n_dropped"], duration_words(summary["seconds"])
    left = f"; {n_dropped:,} more were left out" if n_dropped else ""
    lasted = f"{count_words(summary['n_events'], 'event')} in {seconds}{left}"
    return f"{lasted}\n{table(head, rows, n_left=2)}"
