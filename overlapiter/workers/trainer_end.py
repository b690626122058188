"""The supervisor's end of the channel to the trainer."""

from __future__ import annotations

import collections
import os
import selectors
from collections.abc import Iterator

from .channel import Channel, ChannelClosedError, Message
from .memory import Acquaintance


class TrainerEnd:
    """The channel to the trainer, which may be busy for long and is never waited for."""

    def __init__(self, channel: Channel, selector: selectors.BaseSelector) -> None:
        self.channel = channel
        self.known = Acquaintance()
        self.is_closed = False
        self._selector = selector
        self._outbox: collections.deque[tuple[Message, tuple[int, ...]]] = collections.deque()
        selector.register(channel, selectors.EVENT_READ, self)

    def messages(self, events: int) -> Iterator[Message]:
        """Give the messages that have come; sends what has been waiting to go."""
        if events & selectors.EVENT_WRITE:
            self._flush()
        try:
            while not self.is_closed:
                yield self.channel.receive(wait=False)[0]
        except BlockingIOError:
            return
        except ChannelClosedError:
            self.is_closed = True

    def tell(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or when there is room for it."""
        # A descriptor that waits is duplicated: its owner may close it meanwhile.
        if self._outbox:
            fds = tuple(map(os.dup, fds))
            self._outbox.append((message, fds))
            return
        try:
            self.channel.send(message, fds, wait=False)
        except BlockingIOError:
            self._outbox.append((message, tuple(map(os.dup, fds))))
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except ChannelClosedError:
            self.is_closed = True

    def close(self) -> None:
        """End the service."""
        self.is_closed = True

    def _flush(self) -> None:
        try:
            while self._outbox:
                message, fds = self._outbox[0]
                self.channel.send(message, fds, wait=False)
                self._outbox.popleft()
                for fd in fds:
                    os.close(fd)
            self._watch(selectors.EVENT_READ)
        except BlockingIOError:
            return
        except ChannelClosedError:
            self.is_closed = True

    def _watch(self, events: int) -> None:
        self._selector.modify(self.channel, events, self)
