"""Who has been silent for too long: workers, and servers. Pure: no clock, thread or I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

#: How long a server may at least be silent; on a busy node it answers late.
_LEAST_SECONDS = 10.0
#: How long a rank may at least take to start, and the last worker be silent.
_START_SECONDS = 60.0
#: For so many times the limit the main thread of a server may be busy, say with a checkpoint.
PATIENCE = 10


class AwakeClock:
    """Counts the seconds in which this process looks around: at most one from look to look.

    The time for which it was stopped, or worked on something else, is no silence of others.

    Attributes:
        seconds: The time at the last look.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked_at = math.inf

    def look(self, now: float) -> float:
        """Return the time; ``now`` is that of a clock that does not go back."""
        self.seconds += min(max(0.0, now - self._looked_at), 1.0)
        self._looked_at = now
        return self.seconds


class Watch:
    """The silence of a server, as a rank sees it that waits for a reply.

    Args:
        timeout_seconds: After which the server is taken for dead, but not within 10 s, and within
            a minute as long as it has given no sign of life.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._least_seconds = max(timeout_seconds, _LEAST_SECONDS)
        self._limit_seconds = max(timeout_seconds, _START_SECONDS)
        self._clock = AwakeClock()
        self._heard_at = self._asked_at = 0.0

    def look(self, now: float) -> bool:
        """Note that there is no sign yet; return whether to ask for one."""
        is_due = self._clock.look(now) - self._asked_at >= self._least_seconds / 4
        if is_due:
            self._asked_at = self._clock.seconds
        return is_due

    def hear(self) -> None:
        """Note a sign of life."""
        self._limit_seconds = self._least_seconds
        self._heard_at = self._asked_at = self._clock.seconds

    @property
    def reason(self) -> str:
        """Why the server is taken for dead; empty if it is not."""
        is_over = self._clock.seconds - self._heard_at > self._limit_seconds
        return f"silent for {self._limit_seconds:g} s" if is_over else ""


class Attendance:
    """The workers of a run, as the server sees them, or those of a group, as its sub-server does.

    Args:
        workers: Their ranks.
        timeout_seconds: After which silence a worker is given up.
        least_seconds: The same, at least, for one that starts, and for the last one.

    Attributes:
        all: Their ranks.
        joined: Those that have started.
        lost: Those that are gone, with the reason.
    """

    def __init__(
        self,
        workers: Collection[int],
        timeout_seconds: float,
        least_seconds: float = _START_SECONDS,
    ) -> None:
        self.all = frozenset(workers)
        self.joined: set[int] = set()
        self.lost: dict[int, str] = {}
        self._timeout_seconds = timeout_seconds
        self._least_seconds = least_seconds
        self._clock = AwakeClock()
        self._heard = dict.fromkeys(workers, 0.0)

    @property
    def present(self) -> frozenset[int]:
        """Those that are not lost."""
        return self.all - self.lost.keys()

    def hear(self, rank: int) -> None:
        """Note a message of a worker; that of a sub-server is none."""
        if rank in self.all:
            self._heard[rank] = self._clock.seconds

    def silent(self, now: float, waiting: Collection[int]) -> Iterator[tuple[int, str]]:
        """Yield the workers that are silent for too long, with the reason, to be lost one by one.

        Args:
            now: Seconds of a clock that does not go back.
            waiting: Workers that are silent since they wait for the server; their time begins anew.
        """
        seconds = self._clock.look(now)
        self._heard |= dict.fromkeys(self.all.intersection(waiting), seconds)
        for worker in sorted(self.present - set(waiting)):
            limit_seconds = self._patience_with(worker)
            if seconds - self._heard[worker] > limit_seconds:
                yield worker, f"silent for {limit_seconds:g} s"

    def _patience_with(self, worker: int) -> float:
        """Return for how long a worker may be silent: longer if none could take its work."""
        if worker in self.joined and self.present != {worker}:
            return self._timeout_seconds
        return max(self._timeout_seconds, self._least_seconds)
