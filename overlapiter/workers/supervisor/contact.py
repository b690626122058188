"""The supervisor's end of a channel, to the trainer or to a worker."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
from collections.abc import Iterator

from overlapiter.workers.ipc.channel import Channel, ChannelClosedError, Message


class Contact:
    """A process that the supervisor talks to, and never waits for."""

    def __init__(self) -> None:
        self.channel = Channel.closed()  # the supervisor's end of the channel to it
        self.forget_known()
        self._selector: selectors.BaseSelector
        self._waiting: collections.deque[tuple[Message, tuple[int, ...]]] = collections.deque()

    def attend(self, channel: Channel, selector: selectors.BaseSelector, data: object) -> None:
        """Have a selector watch the channel to a process, with ``data`` to recognize it by."""
        self.channel = channel
        self.forget_known()
        self._selector = selector
        selector.register(channel, selectors.EVENT_READ, data)

    def forget_known(self) -> None:
        """Have layouts and segments sent again."""
        self.layouts: set[int] = set()  # those of slots that it knows, by their numbers
        self.segments: set[int] = set()

    def messages(self, events: int) -> Iterator[Message]:
        """Give the messages that have come; send what has been waiting if there is room now.

        Raises:
            ChannelClosedError: The process has ended; its messages come before.
        """
        if events & selectors.EVENT_WRITE:
            with contextlib.suppress(ChannelClosedError):
                self._flush()
        with contextlib.suppress(BlockingIOError):
            while True:
                yield self.channel.receive(wait=False)[0]

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or when there is room for it; the descriptors stay the caller's.

        A process that has ended is noticed by the end of its own messages.
        """
        with contextlib.suppress(ChannelClosedError):
            if not self._waiting:
                try:
                    self.channel.send(message, fds, wait=False)
                    return
                except BlockingIOError:
                    self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
            # A descriptor that waits is duplicated: its owner may close it meanwhile.
            self._waiting.append((message, tuple(map(os.dup, fds))))

    def hang_up(self) -> None:
        """Close the channel, and forget what waits."""
        while self._waiting:
            _close_all(self._waiting.popleft()[1])
        self.channel.close()

    def _flush(self) -> None:
        try:
            while self._waiting:
                message, fds = self._waiting[0]
                self.channel.send(message, fds, wait=False)
                self._waiting.popleft()
                _close_all(fds)
        except BlockingIOError:
            return
        self._watch(selectors.EVENT_READ)

    def _watch(self, events: int) -> None:
        self._selector.modify(self.channel, events, self._selector.get_key(self.channel).data)


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
