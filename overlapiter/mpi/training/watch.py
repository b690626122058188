"""How long a server has been silent. Pure: no clock, thread or I/O."""

from __future__ import annotations

import math

#: How long a server may at least be silent; on a busy node it answers late.
_LEAST_SECONDS = 10.0
#: How long it may at least take to start.
_START_SECONDS = 60.0
#: For so many times the limit the main thread of a server may be busy, say with a checkpoint.
PATIENCE = 10


class Watch:
    """The silence of a server, as a rank sees it that waits for a reply.

    It counts looks: the time between two of them counts as at most a second, for this process may
    have computed meanwhile, or have been stopped itself.

    Args:
        timeout_seconds: After which the server is taken for dead, but not within 10 s, and within
            a minute as long as it has given no sign of life.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._limit_seconds = max(timeout_seconds, _LEAST_SECONDS)
        self._start_seconds = max(timeout_seconds, _START_SECONDS)
        self._has_heard = False
        self._silent_seconds = self._asked_seconds = 0.0
        self._looked_at = math.inf

    def look(self, now: float) -> bool:
        """Note that there is no sign yet; return whether to ask for one.

        Args:
            now: Seconds of a clock that does not go back.
        """
        self._silent_seconds += min(max(0.0, now - self._looked_at), 1.0)
        self._looked_at = now
        is_due = self._silent_seconds - self._asked_seconds >= self._limit_seconds / 4
        if is_due:
            self._asked_seconds = self._silent_seconds
        return is_due

    def hear(self) -> None:
        """Note a sign of life."""
        self._has_heard = True
        self._silent_seconds = self._asked_seconds = 0.0

    @property
    def reason(self) -> str:
        """Why the server is taken for dead; empty if it is not."""
        limit_seconds = self._limit_seconds if self._has_heard else self._start_seconds
        is_over = self._silent_seconds > limit_seconds
        return f"silent for {limit_seconds:g} s" if is_over else ""
