"""Ends the whole job when a rank fails: the others would wait for it for ever."""

from __future__ import annotations

import sys
from types import TracebackType

from overlapiter.node import this_node

_is_added = False


def add_hook() -> None:
    """Have an exception that nobody catches end the job. Adding it twice is adding it once."""
    global _is_added
    if _is_added:
        return
    _is_added = True
    before = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, value, trace)
        finally:
            from mpi4py import MPI

            if MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1:
                name, rank = this_node().name, MPI.COMM_WORLD.rank
                text = f"overlapiter: rank {rank}, on node {name}, ends the job: {kind.__name__}\n"
                sys.stderr.write(text)
                sys.stderr.flush()
                MPI.COMM_WORLD.Abort(1)

    sys.excepthook = hook
