"""The supervisor's end of a channel, to the trainer or to a worker."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Iterator

from overlapiter.workers.ipc.channel import Channel, ChannelClosedError, Message
from overlapiter.workers.ipc.outbox import Outbox
from overlapiter.workers.supervisor.memory import KnownSegments


class Contact:
    """A process that the supervisor talks to, and never waits for.

    Attributes:
        channel: The supervisor's end of the channel to it.
        known: The layouts and segments that it knows.
    """

    def __init__(self) -> None:
        self.channel = Channel.closed()
        self.known = KnownSegments()
        self._outbox: Outbox

    def attend(self, channel: Channel, selector: selectors.BaseSelector, data: object) -> None:
        """Have a selector watch the channel to a process, with ``data`` to recognize it by."""
        self.channel = channel
        self.known = KnownSegments()
        selector.register(channel, selectors.EVENT_READ, data)
        self._outbox = Outbox(channel, selector)

    def messages(self, events: int) -> Iterator[Message]:
        """Give the messages that have come; sends what has been waiting to go.

        Args:
            events: What the selector has seen.

        Raises:
            ChannelClosedError: The process has ended; its messages come before.
        """
        if events & selectors.EVENT_WRITE:
            with contextlib.suppress(ChannelClosedError):
                self._outbox.flush()
        try:
            while True:
                yield self.channel.receive(wait=False)[0]
        except BlockingIOError:
            return

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or when there is room for it.

        A process that has ended is noticed by the end of its own messages.
        """
        with contextlib.suppress(ChannelClosedError):
            self._outbox.send(message, fds)

    def hang_up(self) -> None:
        """Close the channel, and forget what waits."""
        self._outbox.drop()
        self.channel.close()
