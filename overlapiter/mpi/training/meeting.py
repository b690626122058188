"""Ranks that wait for each other for a bounded time: what MPI's own barrier does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from mpi4py import MPI

_PAUSE_SECONDS = 0.005
#: MPI may read a message after it was sent.
_sent: list[Any] = []


def meet(
    comm: Any,
    tag: int,
    limit_seconds: float,
    sign: Callable[[], object] = lambda: None,
    silent: Collection[int] = (),
) -> list[int]:
    """Wait until all ranks of a communicator have come here; rank 0 waits for each, they for it.

    Ranks that are known to be dead are not waited for.

    Args:
        comm: The communicator, of which only messages between two ranks are used.
        tag: Of the messages.
        limit_seconds: How long to wait for ranks that do not come.
        sign: While its value changes, the time begins anew.
        silent: Ranks that rank 0 does not wait for, as they have not answered for long.

    Returns:
        The ranks that have not come in time: on rank 0 all of them, on the others what rank 0 has
        found, or rank 0.
    """
    if comm.rank == 0:
        missing = _gather(comm, tag, limit_seconds, sign, {*silent})
        here = set(range(1, comm.size)) - {*missing} - dead_in(comm)
        _sent.extend(comm.isend(missing, rank, tag) for rank in here)
        return missing
    _sent.append(comm.isend(None, 0, tag))
    seen, until = sign(), time.monotonic() + limit_seconds
    while not has_come(comm, 0, tag):
        if 0 in dead_in(comm):
            return []
        if time.monotonic() > until:
            return [0]
        if sign() != seen:
            seen, until = sign(), time.monotonic() + limit_seconds
        time.sleep(_PAUSE_SECONDS)
    return comm.recv(source=0, tag=tag)  # type: ignore[no-any-return]  # as rank 0 has sent it


def _gather(
    comm: Any, tag: int, limit_seconds: float, sign: Callable[[], object], silent: set[int]
) -> list[int]:
    missing = {*range(1, comm.size)}
    seen, until = sign(), time.monotonic() + limit_seconds
    while True:
        for rank in [*missing]:
            if has_come(comm, rank, tag):
                comm.recv(source=rank, tag=tag)
                missing.discard(rank)
        missing -= dead_in(comm)
        if sign() != seen:
            seen, until = sign(), time.monotonic() + limit_seconds
        if missing <= silent or time.monotonic() > until:
            return sorted(missing)
        time.sleep(_PAUSE_SECONDS)


def has_come(comm: Any, rank: int, tag: int) -> bool:
    """Return whether a message of a rank has come; False of one that is dead."""
    try:
        return bool(comm.iprobe(source=rank, tag=tag))
    except MPI.Exception:
        return False


def dead_in(comm: Any) -> set[int]:
    """Return the ranks of a communicator that are known to be dead."""
    comm.iprobe(source=comm.rank, tag=0)  # has MPI notice what has happened
    failed = comm.Get_failed()
    ranks = MPI.Group.Translate_ranks(failed, range(failed.size), comm.group)
    return {rank for rank in ranks if rank != MPI.UNDEFINED}


def words_of(ranks: list[int]) -> str:
    """Return ranks as the subject of a sentence."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
