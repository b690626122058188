"""The supervisor's end of the channel to the trainer."""

from __future__ import annotations

import selectors
from collections.abc import Iterator

from overlapiter.workers.ipc.channel import Channel, ChannelClosedError, Message
from overlapiter.workers.ipc.outbox import Outbox
from overlapiter.workers.supervisor.memory import KnownSegments


class TrainerEnd:
    """The channel to the trainer, which may be busy for long and is never waited for."""

    def __init__(self, channel: Channel, selector: selectors.BaseSelector) -> None:
        self.channel = channel
        self.known = KnownSegments()
        self.is_closed = False
        selector.register(channel, selectors.EVENT_READ, self)
        self._outbox = Outbox(channel, selector)

    def messages(self, events: int) -> Iterator[Message]:
        """Give the messages that have come; sends what has been waiting to go."""
        try:
            if events & selectors.EVENT_WRITE:
                self._outbox.flush()
            while not self.is_closed:
                yield self.channel.receive(wait=False)[0]
        except BlockingIOError:
            return
        except ChannelClosedError:
            self.is_closed = True

    def tell(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or when there is room for it."""
        try:
            self._outbox.send(message, fds)
        except ChannelClosedError:
            self.is_closed = True

    def close(self) -> None:
        """End the service."""
        self.is_closed = True
