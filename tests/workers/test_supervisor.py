"""The supervisor, without processes."""

from __future__ import annotations

import selectors
from typing import Any

from overlapiter.board import Row
from overlapiter.workers.ipc.channel import Channel
from overlapiter.workers.supervisor.supervisor import Supervisor
from overlapiter.workers.supervisor.team import Worker


def test_what_a_worker_had_sent_is_left_once_it_was_ended_and_could_not_be_replaced() -> None:
    worker = Worker("file reader", 0, Row(memoryview(bytearray(2048)).cast("q")))
    with selectors.DefaultSelector() as selector:
        ours, theirs = Channel.pair()
        worker.attend(ours, selector, None)
        selector.unregister(ours)
        worker.hang_up()
        theirs.close()
        supervisor = object.__new__(Supervisor)
        supervisor._selector = selector
        stage: Any = None
        assert not supervisor._serve(stage, worker, selectors.EVENT_READ)
