"""The lines of a trace file: what was noted of an event, as Chrome's trace format has it.

Source: "Trace Event Format", Google, 2016: the phases X, i, C, s, t, f and M of the array form.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence

#: Process numbers of Linux are below this; those of each rank have a range of their own.
_PIDS = 1 << 22
_RANKS = 1 << 10
#: Rows of lanes are numbered from here, above the numbers of threads.
_FIRST_LANE = 1 << 23
_LANES = 1 << 12

#: ``json.dumps`` would make an encoder for each event, and names come again. What JSON has no form
#: for is written as text: when lines are made, it is too late to tell who recorded it.
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_quoted = functools.lru_cache(maxsize=1024)(_encode)

Value = str | int | float | bool | None | list[int] | list[str]
#: Of what lasted: its end, what its rows are called, its flows and their phase.
Lasting = tuple[int, str | None, Sequence[int], str]
#: Phase, name, category, time, thread, what else belongs to the phase, and what else is shown.
Event = tuple[str, str, str, int, int, str | Lasting, Mapping[str, Value]]


class Lines:
    """Makes the lines of this process, with the clock of the trace. For one thread at a time."""

    def __init__(self, rank: int, offset_ns: int) -> None:
        self._rank = rank
        self._offset_ns = offset_ns
        self._pid = rank % _RANKS * _PIDS + os.getpid()
        self._lanes: dict[str, list[int]] = {}  # until when each row of a kind is taken

    def of(self, events: Iterable[Event]) -> str:
        """Return the lines for events, in the order in which they ended."""
        lines: list[str] = []
        for event in events:
            self._tell(lines, *event)
        return "".join(lines)

    def _tell(
        self,
        lines: list[str],
        phase: str,
        name: str,
        category: str,
        at_ns: int,
        row: int,
        more: str | Lasting,
        args: Mapping[str, Value],
    ) -> None:
        """Add the lines for an event."""
        offset_ns = self._offset_ns
        # Whole ones: exact as floating-point numbers, so that spans that meet do not overlap.
        begin = (at_ns + offset_ns) // 1000
        if type(more) is tuple:
            end_ns, kind, flows, flow_phase = more
            if kind is not None:
                row = self._free_lane(lines, kind, at_ns, end_ns)
            duration = max(0, (end_ns + offset_ns) // 1000 - begin)
            at = begin + duration // 2
            lines += [self._flow_line(flow_phase, number, at, row) for number in flows]
            more = f',"dur":{duration}'
        told = f',"args":{{{_told(args)}}}' if args else ""
        lines.append(
            f'{{"ph":"{phase}","name":{_quoted(name)},"cat":"{category}",'
            f'"ts":{begin},"pid":{self._pid},"tid":{row}{more}{told}}},\n'
        )

    def _flow_line(self, phase: str, number: int, at: int, row: int) -> str:
        around = "" if phase == "s" else ',"bp":"e"'  # it belongs to the span around it
        return (
            f'{{"ph":"{phase}","name":"mini-batch","cat":"flow","ts":{at},"pid":{self._pid},'
            f'"tid":{row},"id":{self._rank << 36 | number}{around}}},\n'
        )

    def _free_lane(self, lines: list[str], kind: str, begin_ns: int, end_ns: int) -> int:
        """Return the first row of a kind that is free from one time to another."""
        if kind not in self._lanes:
            self._lanes[kind] = []
        lanes, first = self._lanes[kind], _FIRST_LANE + [*self._lanes].index(kind) * _LANES
        for number, taken_ns in enumerate(lanes):
            if taken_ns <= begin_ns:
                lanes[number] = end_ns
                return first + number
        lanes.append(end_ns)
        row, named = first + len(lanes) - 1, {"name": f"{kind} {len(lanes)}"}
        self._tell(lines, "M", "thread_name", "", begin_ns, row, "", named)
        return row


def _told(args: Mapping[str, Value]) -> str:
    """Return the members of an object of JSON; for integers, which are most, without an encoder."""
    return ",".join(
        [f"{_quoted(k)}:{v if type(v) is int else _encode(v)}" for k, v in args.items()]
    )
