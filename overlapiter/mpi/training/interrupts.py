"""Ctrl-C, SIGTERM and SIGHUP, which wait until a checkpoint can be made."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: Launchers, and `timeout`, send several signals at once, which are one wish.
_AT_ONCE_SECONDS = 1.0


class Interrupts:
    """Holds the first Ctrl-C, SIGTERM or SIGHUP back during what is to be done as a whole.

    A later one is not held back, for that may hang. Only signals are held back that run a function
    of Python's, and in the main thread, which is the one that they interrupt.

    Attributes:
        is_busy: Whether something has begun that is to be done as a whole.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._first_at: float | None = None
        self._held: int | None = None

    def begin(self) -> None:
        """Take the place of the handlers that there are, until :meth:`end`."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._take)

    def end(self) -> None:
        """Give the handlers their places back; an interrupt that is held back happens now."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, handler)
        self.release()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Hold an interrupt back until the block has ended; one that fails stays half done."""
        self.is_busy = True
        yield
        self.is_busy = False
        self.release()

    def release(self) -> None:
        """Let an interrupt happen that is held back; what is done so far goes together."""
        number, self._held = self._held, None
        if number is not None:
            is_busy, self.is_busy = self.is_busy, False
            self._before[number](number, None)
            self.is_busy = is_busy

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            if self.is_busy:
                self._held = number
                return
        elif now < self._first_at + _AT_ONCE_SECONDS:
            return
        self._held = None
        self._before[number](number, frame)
