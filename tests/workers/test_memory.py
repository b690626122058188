"""The slots of mini-batches, without processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from overlapiter.sharedmem.layout import layout_of
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.supervisor.contact import Contact
from overlapiter.workers.supervisor.memory import SlotKeeper


class Heard(Contact):
    """Has no process, and keeps what is sent to it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages_sent: list[Message] = []

    def send(self, message: Message, _fds: Sequence[int] = ()) -> None:
        self.messages_sent.append(message)


@pytest.fixture
def keeper() -> Iterator[SlotKeeper]:
    keeper = SlotKeeper(n_expected=2)
    yield keeper
    keeper.close()


def test_memory_that_was_idle_before_longer_slots_were_needed_is_dropped(keeper):
    reader = Heard()
    keeper.adopt(layout_of(np.zeros(4), 2))
    short = keeper.acquire(2)
    keeper.make_known(reader, 0, short)
    keeper.release(short, [reader])
    keeper.release(keeper.acquire(5), [reader])
    assert reader.messages_sent[-1] == ("forget", short.segment_id, 0)
    assert not reader.segments
    assert keeper.acquire(2).segment_id != short.segment_id
