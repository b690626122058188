"""Ranks in groups: each has a leader, which gives orders to the others and may be lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from overlapiter.errors import TrainingError

_TAG = 19
_PAUSE_SECONDS = 0.005


class Group:
    """This rank's group of an MPI job; a context manager that sends the others home.

    Args:
        world: A communicator of all ranks. Collective: it waits for all of them.
        size: Ranks of a group; the last one may have fewer.

    Attributes:
        number: Of the group, from 0.
        is_leader: Whether this rank leads it.
        failure: What is raised where a rank of the group has died.
    """

    def __init__(self, world: Any, size: int) -> None:
        from mpi4py import MPI

        self.failure: type[Exception] = MPI.Exception
        self._world = world
        self._comm = world.Split(world.rank // size, world.rank)
        self.number = world.rank // size
        self.is_leader = self._comm.rank == 0
        self._size = size

    @property
    def comm(self) -> Any:
        """The communicator of those of the group that live."""
        return self._comm

    def order(self, what: Any) -> None:
        """Give an order to the others, those that live. The leader's."""
        self._leave_the_dead()
        for rank in range(1, self._comm.size):
            self._comm.send(("do", what), rank, _TAG)

    def _leave_the_dead(self) -> None:
        from mpi4py import MPI

        self._look()
        failed = self._comm.Get_failed()
        if not failed.size:
            return
        dead = set(MPI.Group.Translate_ranks(failed, range(failed.size), self._comm.group))
        for rank in set(range(1, self._comm.size)) - dead:
            self._comm.send(("shrink", None), rank, _TAG)
        self._comm = self._comm.Shrink()

    def orders(self) -> Iterator[Any]:
        """Yield the leader's orders, until it sends this rank home or is lost."""
        from mpi4py import MPI

        while True:
            try:
                while not self._comm.iprobe(source=0, tag=_TAG):
                    time.sleep(_PAUSE_SECONDS)
                kind, what = self._comm.recv(source=0, tag=_TAG)
                if kind == "shrink":
                    self._comm = self._comm.Shrink()
            except MPI.Exception:  # the leader is dead; another group does its trial again
                return
            if kind == "home":
                return
            if kind == "do":
                yield what

    def _look(self) -> None:
        """Have MPI notice what has happened."""
        self._world.iprobe(source=self._world.rank, tag=_TAG)
        self._comm.iprobe(source=self._comm.rank, tag=_TAG)

    def has_lost_members(self) -> bool:
        """Return whether ranks of the group have died since the last order."""
        self._look()
        return bool(self._comm.Get_failed().size)

    def lost_leaders(self) -> set[int]:
        """Return the numbers of the groups whose leader is known to be dead."""
        from mpi4py import MPI

        self._look()
        failed = self._world.Get_failed()
        ranks = MPI.Group.Translate_ranks(failed, range(failed.size), self._world.group)
        return {rank // self._size for rank in ranks if rank % self._size == 0}

    def is_first(self) -> bool:
        """Return whether no group with a lower number has its leader."""
        return self.lost_leaders() >= set(range(self.number))

    def close(self) -> None:
        """Send the others home."""
        if self.is_leader:
            self._leave_the_dead()
            for rank in range(1, self._comm.size):
                self._comm.send(("home", None), rank, _TAG)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Alone:
    """The group of a process without MPI."""

    number, is_leader, comm = 0, True, None
    failure: type[Exception] = TrainingError

    def order(self, what: Any) -> None:
        """Do nothing: there are no others."""

    def orders(self) -> Iterator[Any]:
        """Yield nothing: this one leads."""
        yield from ()

    def has_lost_members(self) -> bool:
        """Return False."""
        return False

    def lost_leaders(self) -> set[int]:
        """Return none."""
        return set()

    def is_first(self) -> bool:
        """Return True."""
        return True

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Do nothing."""
