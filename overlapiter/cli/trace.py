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
import operator
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from overlapiter.words import count_words, duration_words, size_words

from .console import CommandError, printable, say, table

Event = dict[str, Any]
Keep = Callable[[str], None]

#: What web browsers open: that of 16 ranks, and some more.
_OPENS_BYTES = 300_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace; one of each rank")
    parser.add_argument("--output", metavar="JOINED", help="write all events to this file, too")


class Spans(NamedTuple):
    """All that a process did under one name.

    Attributes:
        process: The process.
        name: The name.
        number: How often, those counted that a long trace left out.
        seconds: How long, added up.
        share: Of the time from the first to the last event of the trace; above 1 where several
            rows did it at the same time.
        median_seconds: How long each took, in the middle.
        p99_seconds: How long 99 of 100 took at most.
    """

    process: str
    name: str
    number: int
    seconds: float
    share: float
    median_seconds: float
    p99_seconds: float


class Summary(NamedTuple):
    """What a trace shows.

    Attributes:
        seconds: From its first to its last event.
        n_events: Events in it.
        n_dropped: Those that were left out for its size.
        spans: By process and name, in the order of the processes.
    """

    seconds: float
    n_events: int
    n_dropped: int
    spans: list[Spans]


def run(arguments: argparse.Namespace) -> int:
    """Sum up, and join; return the exit code."""
    if arguments.output in arguments.files:
        raise CommandError("--output is one of the traces; give another name")
    joined = _Joined(arguments.output) if arguments.output else contextlib.nullcontext()
    with joined as keep:
        summary = summarize(event for path in arguments.files for event in read_trace(path, keep))
    if arguments.json:
        print(json.dumps({**summary._asdict(), "spans": [s._asdict() for s in summary.spans]}))
        return 0
    print(_words(summary))
    return 0


class _Joined:
    """Writes events to a file, which is there once it is complete JSON. A context manager.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = "[\n"

    def __enter__(self) -> Keep:
        self._file = open(self._path + ".part", "w", encoding="utf-8")
        return self._keep

    def _keep(self, text: str) -> None:
        self._file.write(self._before + text)
        self._before = ",\n"

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            self._file.write("[]\n" if self._before == "[\n" else "\n]\n")
        if kind is not None:
            os.unlink(self._file.name)
            return
        os.replace(self._file.name, self._path)
        size_bytes = os.path.getsize(self._path)
        if size_bytes > _OPENS_BYTES:
            size = size_words(size_bytes)
            say(
                f"note: {self._path} has {size}, too much for a web browser: join fewer ranks, or "
                f"start Perfetto's `trace_processor --httpd {self._path}` beside it"
            )


def events_of(path: str | os.PathLike[str], keep: Keep | None = None) -> Iterator[Event]:
    """Give the events of a file as ``overlapiter.tracing`` writes it, ended or not.

    Args:
        path: The file.
        keep: Called with the text of each: writing it anew would take several times as long.
    """
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            text = line.strip().removesuffix(",")
            if text in ("", "[", "]"):
                continue
            with contextlib.suppress(json.JSONDecodeError):  # cut off, by a full disk
                event = json.loads(text)
                if keep is not None:
                    keep(text)
                yield event


def read_trace(path: str, keep: Keep | None = None) -> Iterator[Event]:
    """Give the events of a trace, one after the other: all of them may not fit into memory.

    ``keep`` is called as by :func:`events_of`.

    Raises:
        CommandError: It is none.
    """
    event: object = None
    try:
        for event in events_of(path, keep):
            if not isinstance(event, dict) or "ph" not in event:
                break
            yield event
        else:
            if event is not None:
                return
    except UnicodeDecodeError:
        pass
    raise CommandError(f"{path} holds no trace; name a file that overlapiter wrote")


def summarize(events: Iterable[Event]) -> Summary:
    """Sum up the events of a trace."""
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
        _spans(names.get(pid, (0, str(pid)))[1], name, took[pid, name], seconds)
        for pid, name in keys
    ]
    return Summary(seconds, n_events, n_dropped, spans)


def _spans(process: str, name: str, took: array[float], seconds: float) -> Spans:
    durations, weights = sorted(took[::2]), took[1::2]
    total_seconds = sum(map(operator.mul, took[::2], weights))
    return Spans(
        process,
        name,
        round(sum(weights)),
        total_seconds,
        total_seconds / seconds if seconds else 0.0,
        durations[len(durations) // 2],
        durations[min(len(durations) - 1, len(durations) * 99 // 100)],
    )


def _words(summary: Summary) -> str:
    rows = [
        (
            printable(each.process),
            printable(each.name),
            f"{each.number:,}",
            duration_words(each.seconds),
            f"{each.share:.0%}",
            duration_words(each.median_seconds),
            duration_words(each.p99_seconds),
        )
        for each in summary.spans
    ]
    head = ("process", "what", "times", "took", "of the time", "each", "99% below")
    left = f"; {summary.n_dropped:,} more were left out" if summary.n_dropped else ""
    lasted = f"{count_words(summary.n_events, 'event')} in {duration_words(summary.seconds)}{left}"
    return f"{lasted}\n{table(head, rows, n_left=2)}"
