"""Ranks that wait for each other for a bounded time: what MPI's own barrier does not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any

from mpi4py import MPI

_PAUSE_SECONDS = 0.005
#: The messages that have not left: MPI may read one after it was sent.
_leaving: list[Any] = []


def send_later(comm: Any, thing: object, rank: int, tag: int) -> None:
    """Send something that is pickled, without waiting for its receiver, who may be dead."""
    _leaving[:] = [request for request in _leaving if not _has_left(request)]
    with contextlib.suppress(MPI.Exception):
        _leaving.append(comm.isend(thing, rank, tag))


def _has_left(request: Any) -> bool:
    try:
        return bool(request.Test())
    except MPI.Exception:  # its receiver is dead
        return True


def meet(
    comm: Any,
    tag: int,
    limit_seconds: float,
    sign: Callable[[], object] = lambda: None,
    silent: Collection[int] = (),
    word: Any = None,
) -> tuple[list[int], dict[int, Any]]:
    """Wait until all ranks of a communicator have come here; rank 0 waits for each, they for it.

    Ranks that are known to be dead are not waited for.

    Args:
        comm: The communicator, of which only messages between two ranks are used.
        tag: Of the messages.
        limit_seconds: How long to wait for ranks that do not come.
        sign: While its value changes, the time begins anew.
        silent: Ranks that are not waited for, as they have not answered for long.
        word: What this rank tells the others.

    Returns:
        The ranks that have not come in time: on rank 0 all of them, on the others what rank 0 has
        found, or rank 0. And the words of those that have come, unless rank 0 has not.
    """
    others = {0} if comm.rank else {*range(1, comm.size)}
    if comm.rank:
        send_later(comm, word, 0, tag)
    words: dict[int, Any] = {}
    seen, until = sign(), time.monotonic() + limit_seconds
    while True:
        for rank in others - words.keys():
            if has_come(comm, rank, tag):
                words[rank] = comm.recv(source=rank, tag=tag)
        missing = others - words.keys() - dead_in(comm)
        if sign() != seen:
            seen, until = sign(), time.monotonic() + limit_seconds
        if missing <= {*silent} or time.monotonic() > until:
            break
        time.sleep(_PAUSE_SECONDS)
    result = sorted(missing), words
    if comm.rank:
        return words[0] if words else result
    words[0] = word
    for rank in words.keys() - {0} - dead_in(comm):
        send_later(comm, result, rank, tag)
    return result


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
