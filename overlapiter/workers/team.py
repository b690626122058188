"""The team: the worker processes of one kind, with the parts that each of them has at hand."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from overlapiter.errors import PipelineError
from overlapiter.stats import Counter, Row

from .channel import Channel, ChannelClosedError, Message
from .memory import Acquaintance
from .processes import fork_worker
from .schedule import Part

#: Processes of a team, beyond one for each place, that may end without having done anything.
MAX_FRUITLESS = 10

#: Runs in the forked worker, with its end of the channel.
WorkerMain = Callable[["Worker", Channel], None]


class Worker:
    """One place in a team; the process in it may change.

    Attributes:
        kind: ``"file reader"`` or ``"prefetcher"``.
        number: Counts from 0 in the team.
        row: Its counters.
        pid: The process.
        channel: The supervisor's end of the channel to it.
        parts: The parts it has at hand, the one it is at first.
        n_examples: Examples in these parts.
        n_given: Parts given to this process so far.
        known: What it has been told of the slots.
    """

    def __init__(self, kind: str, number: int, row: Row) -> None:
        self.kind = kind
        self.number = number
        self.row = row
        self.pid = 0
        self.channel: Channel
        self.parts: dict[int, Part] = {}
        self.n_examples = 0
        self.n_given = 0
        self.known = Acquaintance()

    def start(self, name: str, main: WorkerMain) -> None:
        """Fork a process into this place."""
        ours, theirs = Channel.pair()

        def run() -> None:
            ours.close()
            main(self, theirs)

        self.row.put(Counter.CURRENT, 0)
        try:
            self.pid = fork_worker(name, run)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.channel = ours
        self.known = Acquaintance()
        self.n_given = 0

    def end(self) -> int:
        """Kill and reap the process; return its wait status."""
        self.channel.close()
        os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return status

    def give(self, part: Part) -> None:
        """Note that the process has a part at hand."""
        self.parts[part.part_id] = part
        self.n_examples += len(part.indices)
        self.n_given += 1

    def take_back(self, part_id: int) -> Part:
        """Note that the process is done with a part, and return it."""
        part = self.parts.pop(part_id)
        self.n_examples -= len(part.indices)
        return part

    def take_all_back(self) -> list[Part]:
        """Note that the process is gone; return the parts it had at hand."""
        parts = list(self.parts.values())
        self.parts.clear()
        self.n_examples = 0
        return parts

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message; a process that has died is noticed by the end of its own messages."""
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(message, fds)

    def current_index(self) -> int:
        """Return the index of the example that the process is at; -1 if it is at none."""
        return self.row.get(Counter.CURRENT) - 1

    def __str__(self) -> str:
        return f"{self.kind} {self.number} (pid {self.pid})"


class Team:
    """The workers of one kind.

    Args:
        kind: ``"file reader"`` or ``"prefetcher"``.
        process_name: As ``top`` shows it.
        rows: The counters of each worker; there are as many workers.
        main: What a worker does.
        max_parts: Parts after which a process is replaced by a fresh one; None for never.
    """

    def __init__(
        self,
        kind: str,
        process_name: str,
        rows: list[Row],
        main: WorkerMain,
        max_parts: int | None = None,
    ) -> None:
        self._process_name = process_name
        self._main = main
        self._max_parts = max_parts
        self.workers = [Worker(kind, number, row) for number, row in enumerate(rows)]
        self.n_fruitless = 0  # processes that ended, since one of them last sent something

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def start(self, worker: Worker) -> None:
        """Start a process in a worker's place."""
        worker.start(self._process_name, self._main)

    def vacant(self) -> list[Worker]:
        """Return the places without a process."""
        return [worker for worker in self.workers if not worker.pid]

    def count_death(self, status: int) -> None:
        """Count a process that has died.

        Raises:
            PipelineError: They all end before they have done anything.
        """
        exit_code = os.waitstatus_to_exitcode(status)
        self._count_fruitless(f"the last one with exit code {exit_code}")

    def count_failed_start(self, error: OSError) -> None:
        """Count a process that could not be started; the same."""
        self._count_fruitless(f"the last one could not be started: {error}")

    def _count_fruitless(self, how: str) -> None:
        self.n_fruitless += 1
        if self.n_fruitless > MAX_FRUITLESS + len(self.workers):
            raise PipelineError(
                f"{self.n_fruitless} {self.workers[0].kind} processes in a row ended before they "
                f"had done anything, {how}; look at the limits of the job for processes, threads "
                f"and memory, and at what was printed above"
            )

    def least_loaded(self, credit_parts: int, credit_examples: int) -> Worker | None:
        """Return the worker to give the next part to, or None if all have enough at hand."""
        best = None
        for worker in self.workers:
            if (
                worker.pid
                and len(worker.parts) < credit_parts
                and worker.n_examples < credit_examples
                and not self._is_retiring(worker)
                and (best is None or worker.n_examples < best.n_examples)
            ):
                best = worker
        return best

    def is_due(self, worker: Worker) -> bool:
        """Return whether a worker's process has done its share and is idle."""
        return self._is_retiring(worker) and not worker.parts

    def _is_retiring(self, worker: Worker) -> bool:
        return self._max_parts is not None and worker.n_given >= self._max_parts

    def end(self) -> None:
        """Kill and reap all processes; all are killed before the first is waited for."""
        for worker in self.workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)
        for worker in self.workers:
            if worker.pid:
                worker.end()
