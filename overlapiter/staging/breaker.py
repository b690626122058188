"""A circuit breaker: leaves a disk that is full or sick alone, and tries it again by itself."""

from __future__ import annotations

import threading

#: After the first failure, how long nothing is asked of the disk; doubled by each further one.
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0


class Breaker:
    """Says when the staging disk may be written to. Safe for threads; never blocks.

    While it is open, one request after each pause goes through, to see whether the disk has
    recovered. Each request gets a ticket, and hands it back with what became of it: of requests
    that were under way together when the disk failed, the first alone counts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticket = 0
        self._pause_seconds = 0.0  # while it is closed
        self._until_seconds = 0.0

    def enter(self, now_seconds: float) -> int | None:
        """Return the ticket of a request, or None if the disk is to be left alone."""
        if not self._pause_seconds:  # mostly, so it costs nothing
            return self._ticket
        with self._lock:
            if self._pause_seconds:
                if now_seconds < self._until_seconds:
                    return None
                self._until_seconds = now_seconds + self._pause_seconds
            return self._ticket

    def failed(self, ticket: int, now_seconds: float) -> None:
        """Note that a request failed: leave the disk alone, longer than the last time."""
        with self._lock:
            if ticket != self._ticket:
                return
            self._ticket += 1
            longer_seconds = max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS)
            self._pause_seconds = min(longer_seconds, _LONGEST_PAUSE_SECONDS)
            self._until_seconds = now_seconds + self._pause_seconds

    def succeeded(self, ticket: int) -> None:
        """Note that a request went well: the disk is fine."""
        if not self._pause_seconds:
            return
        with self._lock:
            if ticket == self._ticket:
                self._pause_seconds = 0.0
