"""What is sent to a contact never waits, keeps the order, and has descriptors of its own."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator

import pytest

from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.supervisor.contact import Contact


class Post:
    """A contact, the selector that watches it, and the end that is slow to read."""

    def __init__(self) -> None:
        ours, self.theirs = Channel.pair()
        self.ours = ours
        self.selector = selectors.DefaultSelector()
        self.contact = Contact()
        self.contact.attend(ours, self.selector, "data")

    def fill(self) -> int:
        """Send numbered messages until one has to wait; return how many are on their way."""
        number = 0
        while not self.is_waiting():
            self.contact.send(("number", number, b"x" * 1000))
            number += 1
        return number

    def is_waiting(self) -> bool:
        return bool(self.selector.get_key(self.ours).events & selectors.EVENT_WRITE)

    def read_all(self) -> list[int]:
        numbers = []
        try:
            while True:
                numbers.append(self.theirs.receive(wait=False)[0][1])
        except BlockingIOError:
            return numbers

    def close(self) -> None:
        self.contact.hang_up()
        self.selector.close()
        self.theirs.close()


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    yield post
    post.close()


def test_what_finds_no_room_is_sent_later_in_the_same_order(post):
    n = post.fill()
    post.contact.send(("number", n, b""))
    read = post.read_all()
    assert read == list(range(n - 1))

    ((key, events),) = post.selector.select(0)
    assert key.data == "data"
    assert events & selectors.EVENT_WRITE
    assert [*post.contact.messages(selectors.EVENT_WRITE)] == []

    assert post.read_all() == [n - 1, n]
    assert not post.is_waiting()


def test_flushing_without_room_waits_on(post):
    n = post.fill()
    assert [*post.contact.messages(selectors.EVENT_WRITE)] == []
    assert post.is_waiting()
    assert len(post.read_all()) == n - 1


def test_a_descriptor_that_waits_may_be_closed_by_its_owner(post):
    n = post.fill()
    fd = os.memfd_create("test")
    os.write(fd, b"content")
    post.contact.send(("number", n), (fd,))
    os.close(fd)
    post.read_all()
    assert [*post.contact.messages(selectors.EVENT_WRITE)] == []
    post.theirs.receive()
    message, (received,) = post.theirs.receive()
    assert message == ("number", n)
    assert os.pread(received, 10, 0) == b"content"
    os.close(received)


def test_what_is_dropped_keeps_no_descriptor(post):
    post.fill()
    fd = os.memfd_create("test")
    n_before = len(os.listdir("/proc/self/fd"))
    post.contact.send(("number", 0), (fd,))
    assert len(os.listdir("/proc/self/fd")) == n_before + 1
    post.contact.hang_up()
    assert len(os.listdir("/proc/self/fd")) == n_before - 1  # without the channel's own
    os.close(fd)


def test_that_the_other_end_is_gone_is_noticed_by_the_end_of_its_messages(post):
    post.theirs.send(("last",))
    post.theirs.close()
    post.contact.send(("number", 0))
    messages = post.contact.messages(selectors.EVENT_READ)
    assert next(messages) == ("last",)
    with pytest.raises(ChannelClosedError):
        next(messages)
