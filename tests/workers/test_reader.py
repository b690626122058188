"""A file reader, in this process: what it answers."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from overlapiter.board import Row
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.reader import reader
from overlapiter.workers.reader.face import Face
from overlapiter.workers.reader.reader import FileReader, ReadTask
from tests.workers.plans import plan_of


def test_a_reader_that_is_to_end_while_it_waits_for_a_slot_reports_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "keep_freed_memory", lambda: None)  # not of this process
    ours, theirs = Channel.pair()
    row = Row(memoryview(bytearray(2048)).cast("q"))
    with contextlib.closing(ours):
        ours.send(("read", *ReadTask(0, 0, [0], None, b"", None, -1, {})))
        for _ in range(2):  # one that ignores the first is not to wait for ever
            ours.send(("end",))
        file_reader = FileReader(theirs, Face([np.zeros(3)]), plan_of(), row)
        with contextlib.closing(theirs), pytest.raises(ChannelClosedError):
            file_reader.run()
        os.close(file_reader._clock._fd)
        assert ours.receive()[0][0] == "layout"
        with pytest.raises(ChannelClosedError):
            ours.receive()
