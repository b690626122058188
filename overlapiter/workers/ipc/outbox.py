"""Sending without ever waiting, so that a process that is busy or stuck cannot stop the sender."""

from __future__ import annotations

import collections
import os
import selectors

from overlapiter.workers.ipc.channel import Channel, Message


class Outbox:
    """What is on its way to the other end of a channel that a selector watches.

    A message is sent at once if there is room, else by :meth:`flush`, in the same order.

    Args:
        channel: The channel; registered with the selector for reading.
        selector: Wakes its owner when there is room.
    """

    def __init__(self, channel: Channel, selector: selectors.BaseSelector) -> None:
        self._channel = channel
        self._selector = selector
        self._waiting: collections.deque[tuple[Message, tuple[int, ...]]] = collections.deque()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or when there is room for it; the descriptors stay the caller's.

        Raises:
            ChannelClosedError: The other end is gone.
        """
        if not self._waiting:
            try:
                self._channel.send(message, fds, wait=False)
                return
            except BlockingIOError:
                self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        # A descriptor that waits is duplicated: its owner may close it meanwhile.
        self._waiting.append((message, tuple(map(os.dup, fds))))

    def flush(self) -> None:
        """Send what waits, as far as there is room; called when the selector says that there is.

        Raises:
            ChannelClosedError: The other end is gone.
        """
        try:
            while self._waiting:
                message, fds = self._waiting[0]
                self._channel.send(message, fds, wait=False)
                self._waiting.popleft()
                _close_all(fds)
        except BlockingIOError:
            return
        self._watch(selectors.EVENT_READ)

    def drop(self) -> None:
        """Forget what waits; for a channel that is closed."""
        while self._waiting:
            _close_all(self._waiting.popleft()[1])

    def _watch(self, events: int) -> None:
        self._selector.modify(self._channel, events, self._selector.get_key(self._channel).data)


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
