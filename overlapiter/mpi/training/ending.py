"""How the ranks of a job end: together, and within a bounded time.

MPI_Finalize, and so mpiexec, waits for every rank, for ever if one is stopped or hangs. So the
ranks of a command first meet; those that do not come are named, and the job is ended.

After a rank has died, MPI_Finalize of Open MPI 5.0.11 does not always return (seen once in some ten
jobs on a busy machine). So the ranks of a command leave without it where deaths are to be survived,
and those of a script where there was one.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import functools
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from overlapiter.errors import TrainingError
from overlapiter.node import this_host
from overlapiter.workers.start.processes import flush_output

#: A rank's host, and the number of its process there.
Process = tuple[object, int]

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


@dataclasses.dataclass
class _Ending:
    """How this process ends, as far as it is known."""

    #: The exit status; None as long as only Python knows.
    status: int | None = None
    #: Shows a line; None unless this process runs a command, and nothing beside the run.
    say: Callable[[str], object] | None = None
    #: For how long rank 0 may go on when this one has ended.
    patience_seconds: float = math.inf
    #: While its value changes, the others go on; None if they end with this one.
    sign: Callable[[], object] | None = None
    #: Host and process of each rank of the job.
    processes: Mapping[int, Process] = dataclasses.field(default_factory=dict)
    #: Ranks that have not answered for long: they are ended with the others, at once.
    silent: Collection[int] = ()


own = _Ending()


def is_tolerant() -> bool:
    """Return whether the ranks of this job go on when one has died."""
    return os.environ.get(_TOLERANT, "0") not in ("0", "false")


def leave_together(say: Callable[[str], object]) -> None:
    """Have this process, which runs a command, wait at its end for the other ranks, if there are.

    ``say`` shows which of them do not come.
    """
    own.say = say
    _register()


def is_command() -> bool:
    """Return whether this process is a command of overlapiter's, whose ranks are all its own."""
    return own.say is not None


def die_if_tolerant() -> None:
    """Kill this process, if it runs a command and the job is tolerant of faults.

    The others go on at once: they notice neither an exit without MPI_Finalize nor a rank that
    waits for them.
    """
    if is_tolerant() and is_command():
        flush_output()
        os.kill(os.getpid(), signal.SIGKILL)


def abort_start() -> None:
    """End the job if this rank of a command is interrupted before it is known to the server.

    The others would wait for it.
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if own.say is None or is_tolerant() or mpi is None or not mpi.Is_initialized():
        return
    if mpi.COMM_WORLD.size > 1:
        own.say(f"note: rank {mpi.COMM_WORLD.rank} is interrupted as it starts; start again")
        flush_output()
        time.sleep(_PASS_ON_SECONDS)
        mpi.COMM_WORLD.Abort(128 + signal.SIGINT)


@functools.cache
def _register() -> None:
    """Have this process leave in order; once."""
    atexit.register(_leave)


def expect_end(timeout_seconds: float, sign: Callable[[], object] | None = None) -> None:
    """Note that the run is over for this rank, and how soon it is for the others.

    Rank 0 may wait yet for a worker that is silent for ``timeout_seconds``.
    """
    own.patience_seconds = 2 * (timeout_seconds + _LEAVE_SECONDS)  # rank 0 writes, and waits
    own.sign = sign


def start_together(comm: Any, timeout_seconds: float) -> Mapping[int, Process]:
    """Wait for all ranks, in a command for a bounded time; return host and process of each.

    Collective calls after this would wait for them for ever. If the job is tolerant of faults, this
    rank leaves without MPI_Finalize. A command waits for ``timeout_seconds``, but for a minute at
    least.

    Raises:
        TrainingError: Some have not come; or, as a ServerLostError, rank 0 is dead.
    """
    from .meeting import meet, words_of
    from .worker import ServerLostError, StoppedError

    if is_tolerant():
        _register()
    limit_seconds = math.inf
    if is_command():
        limit_seconds = max(timeout_seconds, _START_SECONDS)
        expect_end(min(timeout_seconds, _START_SECONDS))
    me: Process = this_host().key, os.getpid()
    missing, processes = meet(comm, _START_TAG, limit_seconds, word=me)
    if missing:
        error = StoppedError if comm.rank else TrainingError
        raise error(f"{words_of(missing)} did not start in {limit_seconds:g} s; start again")
    if not processes:
        raise ServerLostError(0, "its process has ended")
    if is_world(comm):
        own.processes = processes
    return processes


def is_world(comm: Any) -> bool:
    """Return whether a communicator has all ranks of the job."""
    return bool(comm.size == sys.modules["mpi4py.MPI"].COMM_WORLD.size)


def _leave() -> None:
    status = own.status
    if status is None:
        status = int(getattr(sys, "last_value", None) is not None)
    mpi: Any = sys.modules.get("mpi4py.MPI")  # importing it would start MPI
    is_joined = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    if own.say is None:  # a script
        from .meeting import dead_in

        if not is_joined or not dead_in(mpi.COMM_WORLD):
            return  # MPI_Finalize returns: the script ends as Python has it
        # After a death what it has given to sys.exit is not known here.
    elif is_joined and mpi.COMM_WORLD.size > 1:
        status = _meet_others(mpi.COMM_WORLD, own.say, status)
        if not is_tolerant():
            with open(os.devnull, "w", encoding="ascii") as null:  # no traceback
                faulthandler.dump_traceback_later(_LEAVE_SECONDS, exit=True, file=null)
                mpi.Finalize()
                faulthandler.cancel_dump_traceback_later()
    if is_tolerant():
        flush_output()
        os._exit(status)


def _meet_others(world: Any, say: Callable[[str], object], status: int) -> int:
    """Wait for the other ranks, end the job if some do not come; return the exit status."""
    from .meeting import dead_in, meet, words_of

    rank = world.rank
    # Later for each rank: if rank 0 does not come, one of the others says so, and ends the job.
    limit_seconds = own.patience_seconds + _TURN_SECONDS * (rank - 1)
    if not rank and own.sign is None:
        limit_seconds = _LEAVE_SECONDS
    sign = own.sign or (lambda: None)
    missing, _ = meet(world, _TAG, limit_seconds, sign, own.silent)
    if missing == [0]:
        status = status or 1
        if not (is_tolerant() and 0 in dead_in(world)):  # else who has ended it has said so
            say("note: rank 0 has not ended; what it writes may be incomplete: start again")
    elif missing and not rank:
        more = "" if status else "; all results are written"
        say(f"note: {words_of(missing)} did not end: killed{more}")
    if not missing or (rank and missing != [0]):
        return status
    flush_output()
    time.sleep(_PASS_ON_SECONDS)
    if not is_tolerant():
        world.Abort(status)
    # With fault tolerance MPI_Abort would wait for what is stopped.
    for each in own.processes.keys() & {*missing}:
        signal_process(own.processes[each], signal.SIGKILL)
    return status


def signal_process(process: Process, number: signal.Signals) -> None:
    """Send a signal to a rank's process, if it is on this node and lives."""
    host, pid = process
    if host == this_host().key:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
