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
from collections.abc import Callable, Collection, Sequence
from typing import Any

from overlapiter.errors import TrainingError
from overlapiter.node import this_host

#: How Open MPI tells its ranks that it was started with ``--with-ft ulfm``.
_TOLERANT = "OMPI_MCA_mpi_ft_enable"
_TAG, _START_TAG = 20, 16
#: How long ranks may take to leave when the run is over.
_LEAVE_SECONDS = 30.0
#: How long ranks may at least take to start, one after the other.
_START_SECONDS = 60.0
#: How long mpiexec may take to pass on what was said, which it drops when the job is aborted.
_PASS_ON_SECONDS = 0.5
#: Between two ranks that would end the job: longer than that, and than what ends it takes.
_TURN_SECONDS = 2.0


class _State:
    """How this process ends, as far as it is known.

    Attributes:
        status: The exit status; None as long as only Python knows.
        is_registered: Whether something is done at exit.
        say: Shows a line; None unless this process runs a command.
        patience_seconds: For how long rank 0 may go on when this one has ended.
        sign: While its value changes, the others go on; None if they end with this one.
        processes: Host and process of each rank of the job.
        silent: Ranks that are not waited for at the end.
    """

    status: int | None = None
    is_registered = False
    say: Callable[[str], object] | None = None
    patience_seconds = math.inf
    sign: Callable[[], object] | None = None
    processes: Sequence[tuple[object, int]] = ()
    silent: Collection[int] = ()


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


def die_if_tolerant() -> None:
    """Kill this process, if it runs a command and the job is tolerant of faults.

    The others go on at once: they notice neither an exit without MPI_Finalize nor a rank that
    waits for them.
    """
    if is_tolerant() and is_command():
        _flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _register() -> None:
    if not _State.is_registered:
        _State.is_registered = True
        atexit.register(_leave)


def set_status(status: int) -> None:
    """Say with which exit status this process is about to end."""
    _State.status = status


def expect_end(timeout_seconds: float, sign: Callable[[], object] | None = None) -> None:
    """Note that the run is over for this rank, and how soon it is for the others.

    Args:
        timeout_seconds: How long a silent worker is waited for, as rank 0 may do yet.
        sign: While its value changes, the others go on; None if they end, too.
    """
    _State.patience_seconds = 2 * (timeout_seconds + _LEAVE_SECONDS)  # rank 0 writes, and waits
    _State.sign = None if sign is None else staticmethod(sign)


def expect_silent(ranks: Collection[int]) -> None:
    """Note ranks that have not answered for long: they are ended with the others, at once."""
    _State.silent = ranks


def start_together(comm: Any, timeout_seconds: float) -> None:
    """Have this rank leave without MPI_Finalize if it must; in a command, wait for all ranks.

    What comes then would wait for them for ever.

    Args:
        comm: The communicator.
        timeout_seconds: How long to wait, but a minute at least.

    Raises:
        TrainingError: Some have not come.
    """
    leave_without_finalize()
    if is_command():
        from .meeting import meet, words_of
        from .worker import StoppedError

        limit_seconds = max(timeout_seconds, _START_SECONDS)
        expect_end(min(timeout_seconds, _START_SECONDS))
        if missing := meet(comm, _START_TAG, limit_seconds):
            error = StoppedError if comm.rank else TrainingError
            raise error(f"{words_of(missing)} did not start in {limit_seconds:g} s; start again")


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
    from .meeting import dead_in, meet, words_of

    rank = world.rank
    # Later for each rank: if rank 0 does not come, one of the others says so, and ends the job.
    limit_seconds = _State.patience_seconds + _TURN_SECONDS * (rank - 1)
    if not rank and _State.sign is None:
        limit_seconds = _LEAVE_SECONDS
    sign = _State.sign or (lambda: None)
    missing = meet(world, _TAG, limit_seconds, sign, _State.silent)
    if missing == [0]:
        status = status or 1
        if not (is_tolerant() and 0 in dead_in(world)):  # else who has ended it has said so
            say("note: rank 0 has not ended; what it writes may be incomplete: start again")
    elif missing and not rank:
        more = "" if status else "; all results are written"
        say(f"note: {words_of(missing)} did not end: killed{more}")
    if not missing or (rank and missing != [0]):
        return status
    _flush()
    time.sleep(_PASS_ON_SECONDS)
    if not is_tolerant():
        world.Abort(status)
    # With fault tolerance MPI_Abort would wait for what is stopped.
    for each in missing if _State.processes else ():
        signal_process(_State.processes[each], signal.SIGKILL)
    return status


def signal_process(process: tuple[object, int], number: signal.Signals) -> None:
    """Send a signal to a rank's process, if it is on this node and lives."""
    host, pid = process
    if host == this_host().key:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has ended
            stream.flush()
