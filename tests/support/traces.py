"""The rules by which viewers read Chrome trace events, as Perfetto's importer applies them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_FLOWS = ("s", "t", "f")


def events_in(path: Path) -> list[Event]:
    """Return the events of a file, each in a line; the array may lack its closing bracket."""
    first, *lines = path.read_text().splitlines()
    assert first == "["
    assert all(line.endswith(",") for line in lines)
    return [json.loads(line.removesuffix(",")) for line in lines]


def assert_valid(events: Iterable[Event]) -> None:
    """Fail unless a viewer takes every event as it is meant."""
    spans: dict[tuple[int, int], list[Event]] = defaultdict(list)
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        assert event["ph"] in ("X", "i", "C", "M", *_FLOWS), event
        # Numbers of 32 bits, and times that floating-point numbers hold.
        assert 0 < event["pid"] < 2**32, event
        assert 0 <= event["tid"] < 2**32, event
        assert 0 <= event["ts"] < 2**53, event
        assert event["ts"] == int(event["ts"]), event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            spans[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            assert all(isinstance(v, (int, float)) for v in event["args"].values()), event
        elif event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name"), event
        elif event["ph"] in _FLOWS:
            flows[event["id"]].append(event)
    for row in spans.values():
        _assert_nested(row)
    for flow in flows.values():
        _assert_flow(flow, spans)


def _assert_nested(row: list[Event]) -> None:
    """Fail if spans of a row overlap, neither being within the other: viewers drop such ones."""
    ends: list[float] = []
    for event in sorted(row, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        assert not ends or end <= ends[-1], event
        ends.append(end)


def _assert_flow(flow: list[Event], spans: dict[tuple[int, int], list[Event]]) -> None:
    """Fail unless each point of a flow lies in a span of its row."""
    assert all(event.get("bp") == "e" for event in flow if event["ph"] != "s"), flow
    for event in flow:
        around = (
            span["ts"] <= event["ts"] <= span["ts"] + span["dur"]
            for span in spans[event["pid"], event["tid"]]
        )
        assert any(around), event
