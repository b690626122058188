"""How the ranks of a job end: together, and within a bounded time.

MPI_Finalize, and so mpiexec, waits for every rank, for ever if one is stopped or hangs. So the
ranks of a command first meet; those that do not come are named, and the job is ended.

After a rank has died, MPI_Finalize of Open MPI 5.0.11 does not always return (seen once in some ten
jobs on a busy machine). So ranks of a job that is to survive deaths leave without it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from overlapiter.node import this_host

#: How Open MPI tells its ranks that it was started with ``--with-ft ulfm``.
_TOLERANT = "OMPI_MCA_mpi_ft_enable"
_TAG = 20
#: How long ranks may take to leave when the run is over.
_LEAVE_SECONDS = 30.0
#: How long mpiexec may take to pass on what was said, which it drops when the job is aborted.
_PASS_ON_SECONDS = 0.5


class _State:
    """How this process ends, as far as it is known.

    Attributes:
        status: The exit status; None as long as only Python knows.
        is_registered: Whether something is done at exit.
        say: Shows a line; None unless this process runs a command.
        patience_seconds: For how long rank 0 may go on when this one has ended.
        sign: While its value changes, the others go on.
        processes: Host and process of each rank of the job.
    """

    status: int | None = None
    is_registered = False
    say: Callable[[str], object] | None = None
    patience_seconds = math.inf
    sign: Callable[[], object] = staticmethod(lambda: None)
    processes: Sequence[tuple[object, int]] = ()


def is_tolerant() -> bool:
    """Return whether the ranks of this job go on when one has died."""
    return os.environ.get(_TOLERANT, "0") not in ("0", "false")


def is_command() -> bool:
    """Return whether this process does nothing beside the run."""
    return _State.say is not None


def leave_without_finalize() -> None:
    """Have this process end without MPI_Finalize, if the job is tolerant of faults."""
    if is_tolerant():
        _register()


def leave_together(say: Callable[[str], object]) -> None:
    """Have this process, which runs a command, wait at its end for the other ranks, if there are.

    Args:
        say: Shows which of them do not come.
    """
    _State.say = say
    _register()


def _register() -> None:
    if not _State.is_registered:
        _State.is_registered = True
        atexit.register(_leave)


def set_status(status: int) -> None:
    """Say with which exit status this process is about to end."""
    _State.status = status


def expect_end(timeout_seconds: float, sign: Callable[[], object] = lambda: None) -> None:
    """Note that the run is over for this rank, and so soon for the others.

    Args:
        timeout_seconds: How long a silent worker is waited for, as rank 0 may do yet.
        sign: While its value changes, the others go on.
    """
    _State.patience_seconds = 2 * timeout_seconds + _LEAVE_SECONDS
    _State.sign = staticmethod(sign)


def note_processes(processes: Sequence[tuple[object, int]]) -> None:
    """Note host and process of each rank of the job."""
    _State.processes = processes


def _leave() -> None:
    status = _State.status
    if status is None:
        status = int(getattr(sys, "last_value", None) is not None)
    mpi = sys.modules.get("mpi4py.MPI")  # importing it would start MPI
    is_joined = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    if _State.say is not None and mpi is not None and is_joined and mpi.COMM_WORLD.size > 1:
        status = _meet_others(mpi.COMM_WORLD, _State.say, status)
        if not is_tolerant():
            with open(os.devnull, "w", encoding="ascii") as null:  # no traceback
                faulthandler.dump_traceback_later(_LEAVE_SECONDS, exit=True, file=null)
                mpi.Finalize()
                faulthandler.cancel_dump_traceback_later()
    if is_tolerant():
        _flush()
        os._exit(status)


def _meet_others(world: Any, say: Callable[[str], object], status: int) -> int:
    """Wait for the other ranks, end the job if some do not come; return the exit status."""
    from .meeting import meet, words_of

    rank = world.rank
    # Later for each rank: if rank 0 does not come, one of the others says so, and ends the job.
    limit_seconds = _State.patience_seconds + 0.5 * (rank - 1) if rank else _LEAVE_SECONDS
    missing = meet(world, _TAG, limit_seconds, _State.sign)
    if missing == [0]:
        status = status or 1
        say("note: rank 0 has not ended; what it writes may be incomplete: start again")
    elif missing and not rank:
        say(f"note: {words_of(missing)} did not end, and is ended; all results are written")
    if not missing or (rank and missing != [0]):
        return status
    _flush()
    time.sleep(_PASS_ON_SECONDS)
    if not is_tolerant():
        world.Abort(status)
    for each in missing:  # with fault tolerance, MPI_Abort would wait for what is stopped
        _kill(each)
    return status


def _kill(rank: int) -> None:
    """Kill a rank of the job, if it is on this node."""
    host, pid = _State.processes[rank] if _State.processes else (None, 0)
    if host == this_host().key:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has ended
            stream.flush()
