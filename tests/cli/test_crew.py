"""A crew of threads: what the commands that use it cannot show."""

from __future__ import annotations

import threading

import pytest

from overlapiter.cli.console import CommandError
from overlapiter.cli.crew import Crew, answered
from overlapiter.origins.origin import LocalOrigin


def test_a_command_that_may_start_no_thread_says_so(monkeypatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    crew = Crew[None, None](LocalOrigin(), lambda _part: None, 4, 1.0)
    with pytest.raises(CommandError, match="ulimit -u"):
        list(crew.run(iter([{"a.jpg": None}])))
    with pytest.raises(CommandError, match="ulimit -u"):
        answered("a.jpg", bool, 1.0)
