"""Which workers take part, and which are silent for too long. Pure: no clock, thread or I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator

#: How long a worker that is to start yet, and the last one, may at least be silent.
_LEAST_SECONDS = 60.0
#: The server looks around more often, unless it validates in line or was stopped; that does not
#: count as silence of the workers.
_LATE_SECONDS = 1.0


class Attendance:
    """The workers of a run.

    Args:
        workers: Their ranks.
        timeout_seconds: After which silence a worker is given up.
        now: Seconds of a clock that does not go back, as for the methods.

    Attributes:
        all: Their ranks.
        lost: Those that are gone, with the reason.
    """

    def __init__(self, workers: Collection[int], timeout_seconds: float, now: float) -> None:
        self.all = frozenset(workers)
        self.lost: dict[int, str] = {}
        self._timeout_seconds = timeout_seconds
        self._looked_at = now
        self._heard = dict.fromkeys(workers, now)
        self._joined: set[int] = set()

    @property
    def present(self) -> frozenset[int]:
        """Those that are not lost."""
        return self.all - self.lost.keys()

    @property
    def has_begun(self) -> bool:
        """Whether one has joined."""
        return bool(self._joined)

    def join(self, worker: int) -> None:
        """Note that a worker has started."""
        self._joined.add(worker)

    def hear(self, rank: int, now: float) -> None:
        """Note a message of a worker; that of a sub-server is none."""
        if rank in self.all:
            self._heard[rank] = now

    def silent(self, now: float, waiting: Collection[int]) -> Iterator[tuple[int, str]]:
        """Yield the workers that are silent for too long, with the reason, to be lost one by one.

        Args:
            now: The time.
            waiting: Workers that are silent since they wait for the server; their time begins anew.
        """
        late_seconds = max(0.0, now - self._looked_at - _LATE_SECONDS)
        self._heard = {worker: at + late_seconds for worker, at in self._heard.items()}
        self._heard |= dict.fromkeys(self.all.intersection(waiting), now)
        self._looked_at = now
        for worker in sorted(self.present - set(waiting)):
            seconds = self._patience_with(worker)
            if self._heard[worker] < now - seconds:
                yield worker, f"silent for {seconds:g} s"

    def _patience_with(self, worker: int) -> float:
        """Return for how long a worker may be silent: longer if none could take its work."""
        if worker in self._joined and self.present != {worker}:
            return self._timeout_seconds
        return max(self._timeout_seconds, _LEAST_SECONDS)
