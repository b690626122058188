"""Show how the trainings of this user on this node load their data, live.

A table in a terminal, refreshed until Ctrl-C; elsewhere a block of lines each time. Rates are those
of the time since the line before; below it, what each training waits for, and what to change. It
reads counters that the trainings keep in memory: they take no notice of it.

Examples:
  overlapiter top
  overlapiter top 12345 --interval 10
  overlapiter top --once --json | jq '.[].stats.wait_share'
  overlapiter top --prometheus /var/lib/node_exporter/overlapiter.prom > /dev/null

exit code: 0, or 1 if there is no such training (with --once, or a PID)
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from overlapiter.explain import Explanation, explain
from overlapiter.stats import GAUGES, Stats, snapshot, waited_for
from overlapiter.words import duration_words, size_words

from .console import CommandError, printable, seconds, table, written
from .jobs import Job, find_jobs

if TYPE_CHECKING:
    from rich.console import Group

_HEAD = (
    "program", "pid", "runs for", "examples/s", "waits", "for what", "ready", "slow store",
    "latency", "in flight", "from staging", "cores", "memory", "faults",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("pid", metavar="PID", nargs="?", type=int, help="only this process")
    interval = "seconds between two looks (default: %(default)g)"
    parser.add_argument("--interval", metavar="S", type=seconds, default=2.0, help=interval)
    parser.add_argument("--once", action="store_true", help="look once, at all since the start")
    metrics = "write the counters there, too, each time, as node_exporter reads them (textfile)"
    parser.add_argument("--prometheus", metavar="FILE", help=metrics)


class _Seen(NamedTuple):
    """A job at one look: what was done since the look before, why, and since the start."""

    job: Job
    stats: Stats
    explanation: Explanation
    total: Stats


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    before: dict[int, Stats] = {}
    seen = _look(arguments, before)
    if not seen and (arguments.once or arguments.pid is not None):
        raise CommandError(
            "no process of this user on this node trains with overlapiter; run it there, as the "
            "user of the job, and with the PID of the trainer if one was given"
        )
    is_shown = sys.stdout.isatty() and not (arguments.once or arguments.json)
    text_of = _json if arguments.json else _words
    lines = contextlib.nullcontext(lambda seen: print(text_of(seen), flush=True))
    with _terminal() if is_shown else lines as show:
        while True:
            show(seen)
            if arguments.once or (arguments.pid is not None and not seen):
                return 0
            time.sleep(arguments.interval)
            seen = _look(arguments, before)


def _look(arguments: argparse.Namespace, before: dict[int, Stats]) -> list[_Seen]:
    """Return the jobs as they are now, and write their counters where that was asked for.

    ``before`` holds, by job, the last snapshot of each.
    """
    seen = []
    for job in find_jobs(arguments.pid):
        total, earlier = snapshot(job.board), before.get(job.inode)
        explanation = explain(job.board, total, earlier)
        stats = total.since(earlier) if earlier else total
        seen.append(_Seen(job, stats, explanation, total))
        before[job.inode] = total
    if arguments.prometheus:  # of none, too: those that have ended are to go
        try:
            with written(arguments.prometheus) as file:
                file.write(_metrics(seen).encode())
        except OSError as error:
            message = f"{error}; name a file in a directory that you may write"
            raise CommandError(message) from error
    return seen


@contextlib.contextmanager
def _terminal() -> Iterator[Callable[[list[_Seen]], None]]:
    """Give what shows jobs in a terminal, each time in the same place."""
    from rich.live import Live

    with Live(auto_refresh=False, screen=True) as live:
        yield lambda seen: live.update(_screen(seen), refresh=True)


# --- words ----------------------------------------------------------------------------------------


def _name(seen: _Seen) -> str:
    return printable(seen.job.program) or "-"


def _labels(seen: _Seen) -> dict[str, object]:
    return {"pid": seen.job.pid, "program": _name(seen), "iterator": seen.job.inode}


def _json(seen: list[_Seen]) -> str:
    facts = [
        _labels(each)
        | {
            "stats": each.stats.as_dict(),
            "cause": each.explanation.cause.value,
            "explanation": each.explanation.text,
            "change": each.explanation.change,
            "expected_examples_per_second": each.explanation.expected,
        }
        for each in seen
    ]
    return json.dumps(facts)


def _row(seen: _Seen) -> tuple[str, ...]:
    stats = seen.stats
    parts = waited_for(stats)
    staged, store = stats.staged_share, stats.store_latency.percentile(50)
    speed = f"{size_words(stats.store_bytes_per_second)}/s" if stats.n_prefetchers else "-"
    return (
        _name(seen),
        str(seen.job.pid),
        duration_words(seen.total.seconds),
        f"{stats.examples_per_second:,.0f}",
        f"{stats.wait_share:.0%}",
        max(parts, key=lambda name: parts[name]) if stats.wait_seconds else "-",
        str(stats.batches_ready),
        speed,
        duration_words(store) if store else "-",
        f"{stats.mean_reads:,.0f} of {stats.reads_in_flight}" if stats.n_prefetchers else "-",
        "-" if staged is None else f"{staged:.0%}",
        f"{stats.cpu_seconds / max(stats.seconds, 1e-9):.1f}",
        size_words(stats.memory_bytes),
        str(seen.total.faults_survived),
    )


def _words(seen: list[_Seen]) -> str:
    if not seen:
        return "no training with overlapiter runs"
    rows = [_row(each) for each in seen]
    paragraphs = [f"{each.job.pid}: {each.explanation.text}" for each in seen]
    return "\n".join([table(_HEAD, rows), "", *paragraphs, ""])


def _screen(seen: list[_Seen]) -> Group:
    """Return what a terminal shows: facts as rows, one column for each training."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    title = f"overlapiter top   {time.strftime('%H:%M:%S')}   Ctrl-C ends it"
    if not seen:
        return Group(Text(title, style="bold"), Text(_words(seen)))
    (_, *names), *facts = zip(_HEAD, *map(_row, seen), strict=True)
    advice = [
        Padding(Text(f"{each.job.pid}: {each.explanation.text}"), (1, 2, 0, 2)) for each in seen
    ]
    shown = Text(table(("", *names), facts), no_wrap=True)
    return Group(Text(title, style="bold"), shown, *advice)


# --- metrics --------------------------------------------------------------------------------------

#: What stands in a label for what would end it.
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _metrics(seen: list[_Seen]) -> str:
    """Write the counters of jobs as node_exporter reads them.

    Source: "Exposition formats", prometheus.io: the text format 0.0.4.
    """
    lines, explained = [], _explained()
    counters = [each.total.as_dict() for each in seen]
    for name, first in counters[0].items() if counters else ():
        if isinstance(first, list):  # by tier
            continue
        is_counter = name in explained and name not in GAUGES
        metric = f"overlapiter_{name}" + "_total" * is_counter
        lines.append(f"# HELP {metric} {explained.get(name, name.replace('_', ' '))}")
        lines.append(f"# TYPE {metric} {'counter' if is_counter else 'gauge'}")
        for each, values in zip(seen, counters, strict=True):
            labels = {key: str(text).translate(_ESCAPES) for key, text in _labels(each).items()}
            words = ",".join(f'{key}="{text}"' for key, text in labels.items())
            lines.append(f"{metric}{{{words}}} {values[name]}")
    return "\n".join(lines) + "\n"


def _explained() -> dict[str, str]:
    """Return the first sentence of what each counter means."""
    text = inspect.cleandoc(str(Stats.__doc__)).partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()).partition(". ")[0] for name, words in found}
