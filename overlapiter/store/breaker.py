"""A circuit breaker: leaves a disk that is full or sick alone, and tries it again by itself."""

from __future__ import annotations

import threading

#: After the first failure, how long nothing is asked of the disk; doubled by each further one.
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0


class Breaker:
    """Says when the staging disk may be asked. Safe for threads; never blocks.

    It opens when a request fails. After each pause one request passes, to see whether the disk has
    recovered; requests that fail within a pause do not lengthen it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause_seconds = 0.0  # while it is closed
        self._failed_seconds = self._until_seconds = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether the last request went well."""
        return not self._pause_seconds

    def is_passable(self, now_seconds: float) -> bool:
        """Return whether a request may pass; if it is open, this is the one after a pause."""
        if not self._pause_seconds:  # mostly, so it costs nothing
            return True
        with self._lock:
            if now_seconds < self._until_seconds:
                return False
            self._until_seconds = now_seconds + self._pause_seconds
            return True

    def failed(self, now_seconds: float) -> None:
        """Note that a request failed: leave the disk alone, longer than the last time."""
        with self._lock:
            if self._pause_seconds and now_seconds < self._failed_seconds + self._pause_seconds:
                return  # the request began before the breaker opened
            self._failed_seconds = now_seconds
            longer_seconds = max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS)
            self._pause_seconds = min(longer_seconds, _LONGEST_PAUSE_SECONDS)
            self._until_seconds = now_seconds + self._pause_seconds

    def succeeded(self) -> None:
        """Note that a request went well: the disk is fine."""
        self._pause_seconds = 0.0
