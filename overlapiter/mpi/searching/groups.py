"""Ranks in groups: each has a leader, which gives orders to the others and may be lost.

A rank that is stopped or hangs does not answer, and MPI's collective calls would wait for it for
ever. So a leader calls the roll before each order, and those that do not answer in time are left
behind: the others, when all of them have answered one more call at once, make a communicator of
their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from overlapiter.mpi.training.meeting import dead_in, has_come, send_later

_TAG, _END_TAG = 19, 21
_PAUSE_SECONDS = 0.005
#: How long a rank may at least be silent; on a busy node it answers late.
_LEAST_SECONDS = 10.0


class Group:
    """This rank's group of an MPI job; a context manager that sends the others home.

    Args:
        world: A communicator of all ranks. Collective: it waits for all of them.
        size: Ranks of a group; the last one may have fewer.
        timeout_seconds: After which silence a rank is left behind, but not within 10 s.
        say: Called with what the user should know.

    Attributes:
        number: Of the group, from 0.
        is_leader: Whether this rank leads it.
        comm: The communicator of those of the group that take part.
    """

    def __init__(
        self, world: Any, size: int, timeout_seconds: float, say: Callable[[str], object]
    ) -> None:
        self._world = world
        self._limit_seconds = max(timeout_seconds, _LEAST_SECONDS)
        self._say = say
        self.comm = world.Split(world.rank // size, world.rank)
        self.number = world.rank // size
        self.is_leader = self.comm.rank == 0
        self._size = size
        self._n_calls = 0

    # --- the leader -----------------------------------------------------------------------------

    def order(self, what: Any) -> None:
        """Give an order to the others, those that take part. The leader's."""
        self.leave_behind()
        for rank in range(1, self.comm.size):
            self._tell(rank, "do", what)

    def leave_behind(self) -> list[int]:
        """Call the roll; leave those behind that do not answer in time, and return them."""
        here, left = {*range(1, self.comm.size)}, set[int]()
        while absent := here - self._call(here):  # meanwhile another one may have been stopped
            here -= absent
            left |= absent
        if not left:
            return []
        of_world = self._of_world(left)
        names = ", ".join(map(str, of_world))
        self._say(f"rank {names} does not answer; group {self.number} goes on without")
        how = [0, *sorted(here)], left <= self._dead()
        for rank in here:
            self._tell(rank, "form", *how)
        self._form(*how)
        return of_world

    def _call(self, ranks: set[int]) -> set[int]:
        """Call the roll of some ranks; return those that answer in time. It ends when all have."""
        self._n_calls += 1
        present: set[int] = set()
        called_at, until = -math.inf, time.monotonic() + self._limit_seconds
        while (absent := ranks - present - self._dead()) and time.monotonic() < until:
            if time.monotonic() > called_at + self._limit_seconds / 5:  # for them to stay
                called_at = time.monotonic()
                for rank in ranks:
                    self._tell(rank, "call", self._n_calls)
            time.sleep(_PAUSE_SECONDS)
            present |= {rank for rank in absent if self._n_calls in self._answers(rank)}
        return present - self._dead()

    def _answers(self, rank: int) -> list[int]:
        """Return the numbers of the calls that a rank has answered since the last look."""
        answers: list[int] = []
        while has_come(self.comm, rank, _TAG):
            answers += self.comm.recv(source=rank, tag=_TAG)
        return answers

    def _dead(self) -> set[int]:
        return dead_in(self.comm)

    def _of_world(self, ranks: set[int]) -> list[int]:
        found = MPI.Group.Translate_ranks(self.comm.group, sorted(ranks), self._world.group)
        return [int(rank) for rank in found]

    def _form(self, ranks: list[int], is_rid_of_dead: bool) -> None:
        # MPI sets no limit here, but all have just answered.
        if is_rid_of_dead:  # Create_group may fail if some are dead
            self.comm = self.comm.Shrink()
        else:
            self.comm = self.comm.Create_group(self.comm.group.Incl(ranks))

    def _tell(self, rank: int, *what: Any) -> None:
        send_later(self.comm, what, rank, _TAG)

    # --- the others -----------------------------------------------------------------------------

    def orders(self) -> Iterator[Any]:
        """Yield the leader's orders, until it sends this rank home or is lost."""
        while True:
            kind, *what = self._told()
            if kind == "home":
                return
            if kind == "call":
                self._tell(0, *what)
            elif kind == "form":
                self._form(*what)
            else:
                yield what[0]

    def _told(self) -> tuple[Any, ...]:
        """Return what the leader tells; it is to go home if the leader is lost."""
        until = time.monotonic() + self._limit_seconds
        while not has_come(self.comm, 0, _TAG):
            is_dead = 0 in self._dead()
            if is_dead or time.monotonic() > until:  # another group does its trial again
                leader = self.number * self._size
                reason = "is dead" if is_dead else "does not answer"
                self._say(f"rank {leader} {reason}; rank {self._world.rank} leaves with it")
                return ("home",)
            time.sleep(_PAUSE_SECONDS)
        return self.comm.recv(source=0, tag=_TAG)  # type: ignore[no-any-return]  # as it was told

    # --- all groups -----------------------------------------------------------------------------

    def lost_leaders(self) -> set[int]:
        """Return the numbers of the groups whose leader is known to be dead."""
        return {rank // self._size for rank in dead_in(self._world) if not rank % self._size}

    def is_first(self) -> bool:
        """Return whether no leader of a group with a lower number has come here. For leaders."""
        leaders = range(0, self._world.size, self._size)
        for leader in leaders[self.number + 1 :]:
            send_later(self._world, None, leader, _END_TAG)
        until = time.monotonic() + self._limit_seconds
        while time.monotonic() < until:
            lower = {*range(self.number)} - self.lost_leaders()
            if not lower:
                return True
            if any(has_come(self._world, number * self._size, _END_TAG) for number in lower):
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Send the others home, also those that are not ready yet."""
        if self.is_leader:
            for rank in range(1, self.comm.size):
                self._tell(rank, "home")
