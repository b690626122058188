"""The team: the worker processes of one kind, with the parts that each of them has at hand."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from overlapiter.board import Counter, Row
from overlapiter.errors import PipelineError
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.start.processes import Stops, fork_worker, is_running, kill_family
from overlapiter.workers.supervisor.contact import Contact
from overlapiter.workers.supervisor.schedule import Part

#: Processes of a team, beyond one for each place, that may end without having done anything.
MAX_FRUITLESS = 10
#: Deaths in a row on the same example after which it is given up.
MAX_DEATHS = 3
#: The same for the example that was to come next when its worker died between two examples.
MAX_SUSPECT_DEATHS = 10

#: Runs a worker on its end of the channel, counting in its row; the end of the channel, by its
#: ChannelClosedError, is a worker's ordinary end.
Role: TypeAlias = "Callable[[Channel, Row], None]"


class Death(NamedTuple):
    """The end of a worker's process."""

    exit_code: int  # how it ended; -N means killed by signal N
    current_index: int  # the example that it was at; -1 for none
    last_words: str  # the traceback that it reported before, mostly empty


class Worker(Contact):
    """One place in a team; the process in it may change."""

    def __init__(self, kind: str, number: int, row: Row) -> None:
        super().__init__()
        self.kind = kind  # "file reader", "prefetcher" or "peer"
        self.number = number  # counts from 0 in the team
        self.row = row
        self.pid = 0  # the process; 0 while there is none
        self.parts: dict[int, Part] = {}  # the parts it has at hand, the one it is at first
        self.n_examples = 0  # examples in these parts
        self.n_given = 0  # parts given to this process so far
        self.last_words = ""  # the traceback that it reported before it ended
        self._stops = Stops()

    def start(self, name: str, role: Role, leave_supervisor: Callable[[], None]) -> Channel:
        """Fork a process into this place; return the channel to :meth:`attend` to.

        Raises:
            OSError: There are too many processes or descriptors.
        """
        ours, theirs = Channel.pair()

        def run() -> None:
            ours.close()
            leave_supervisor()
            with contextlib.suppress(ChannelClosedError):
                role(theirs, self.row)

        def report(text: str) -> None:
            with contextlib.suppress(ChannelClosedError):
                theirs.send(("crashed", text))

        self.row.put(Counter.CURRENT, 0)
        try:
            self.pid = fork_worker(name, run, report)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.n_given = 0
        self.last_words = ""
        self._stops = Stops()
        return ours

    def is_lost(self) -> bool:
        """Look whether the process can do no more; called now and then.

        It is stopped, or has ended, though one that the dataset started keeps its channel open.
        """
        return not is_running(self.pid) or self._stops.is_still_stopped(self.pid)

    def await_end(self, timeout_seconds: float) -> None:
        """Wait until the process has closed its end of the channel, or for so long."""
        deadline = time.monotonic() + timeout_seconds
        with contextlib.suppress(ChannelClosedError):
            while self.channel.is_readable(max(0.0, deadline - time.monotonic())):
                self.channel.receive(wait=False)

    def end(self) -> int:
        """Kill and reap the process; return its wait status."""
        self.hang_up()
        kill_family(self.pid)  # not reaped yet, so the pid is still its own
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

    def current_index(self) -> int:
        """Return the index of the example that the process is at; -1 if it is at none."""
        return self.row.get(Counter.CURRENT) - 1

    def __str__(self) -> str:
        return f"{self.kind} {self.number} (pid {self.pid})"


class Team:
    """The workers of one kind, one for each row of counters."""

    def __init__(
        self,
        kind: str,
        rows: list[Row],
        role: Role,
        leave_supervisor: Callable[[], None],
        max_parts: int | None = None,
        *,
        needs_all: bool = False,
    ) -> None:
        self._process_name = f"ovl-{kind.split()[-1]}"
        self._role = role
        self._leave_supervisor = leave_supervisor  # closes what is its, in each forked process
        self._max_parts = max_parts  # after which a process is replaced by a fresh one, if ever
        self._needs_all = needs_all  # whether no other worker can do what one of them has to do
        self.workers = [Worker(kind, number, row) for number, row in enumerate(rows)]
        self.n_wanted = len(self.workers)  # of the places, the first ones are to have a process
        self.n_fruitless = 0  # processes that ended, since one of them last sent something
        # By part: the example of the last death, whether it is known to be that one, how often.
        self._deaths: dict[int, tuple[int, bool, int]] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    @property
    def wanted(self) -> list[Worker]:
        """The places that are to have a process."""
        return self.workers[: self.n_wanted]

    def start(self, worker: Worker) -> Channel | None:
        """Start a process in a worker's place.

        Returns:
            The channel to attend to; None if it is to be tried again a little later.

        Raises:
            PipelineError: It was tried in vain too often.
        """
        try:
            return worker.start(self._process_name, self._role, self._leave_supervisor)
        except OSError as error:  # too many processes, say
            # Else others do its work meanwhile.
            if self._needs_all or not any(other.pid for other in self.workers):
                self._count_fruitless(f"the last one could not be started: {error}")
        return None

    def count_death(self, death: Death) -> None:
        """Count a process that has died.

        Raises:
            PipelineError: They all end before they have done anything.
        """
        text = f"the last one with exit code {death.exit_code}"
        if death.last_words:
            text += f" after\n\n{death.last_words}"
        self._count_fruitless(text)

    def _count_fruitless(self, how: str) -> None:
        self.n_fruitless += 1
        if self.n_fruitless > MAX_FRUITLESS + len(self.workers):
            raise PipelineError(
                f"{self.n_fruitless} {self.workers[0].kind} processes in a row ended before they "
                f"had done anything; look at the limits of the job for processes, threads, "
                f"descriptors and memory, and at what was printed above; {how}"
            )

    def example_to_give_up(
        self, death: Death, parts: Sequence[Part]
    ) -> tuple[Part, int, int] | None:
        """Count the death of a worker with parts at hand, in order, for the example that it was at.

        If it was at none of theirs, it may have died of the one that was to come next.

        Returns:
            A part, the example in it that is to be given up, and how many deaths in a row it has
            caused; mostly None.
        """
        if not parts:
            return None
        at = next((part for part in parts if death.current_index in part.indices), None)
        part, is_known = at or parts[0], at is not None
        index = death.current_index if is_known else part.indices[0]
        *culprit, count = self._deaths.pop(part.part_id, (-1, False, 0))
        count = count + 1 if culprit == [index, is_known] else 1
        if count == (MAX_DEATHS if is_known else MAX_SUSPECT_DEATHS):
            self.n_fruitless = 0  # to give up an example is progress
            return part, index, count
        self._deaths[part.part_id] = index, is_known, count
        return None

    def least_loaded(
        self,
        credit_parts: int = sys.maxsize,
        credit_examples: int = sys.maxsize,
        most_workers: int = sys.maxsize,
    ) -> Worker | None:
        """Return the worker to give the next part to, or None if all have enough at hand.

        Args:
            credit_parts: Parts that a worker may have at hand.
            credit_examples: Examples from which on it is given no further part.
            most_workers: Workers that may have work at the same time.
        """
        best, n_left = None, most_workers
        for worker in self.workers:
            if not n_left:
                break
            n_left -= worker.pid > 0
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

    def end(self, *, grace_seconds: float = 0.0) -> None:
        """Reap all processes; those that have not ended by themselves in time are killed before."""
        deadline = time.monotonic() + grace_seconds
        running = [worker for worker in self.workers if worker.pid]
        for worker in running:
            worker.await_end(max(0.0, deadline - time.monotonic()))
        for worker in running:
            kill_family(worker.pid)
        for worker in running:
            worker.end()
