"""Ends the whole job when a rank fails: the others would wait for it for ever.

An uncaught exception ends a rank, but MPI's launcher notices only when the process has ended, and
before that mpi4py calls MPI_Finalize, which waits for ranks that wait for this one. So these events
are printed and then end the job by MPI_Abort:

* an uncaught exception in the main thread (``sys.excepthook``) or in another one
  (``threading.excepthook``); ``next()`` raises the exceptions of worker processes;
* ``SystemExit`` with an exit code other than 0, before Python's other steps at exit.

The launcher itself ends the job when a rank is killed.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # its exit handler then runs after ours
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from overlapiter.node import this_node
from overlapiter.workers.start.launch import is_importing_main

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class _State:
    """The hooks of this process, and how it ends.

    Attributes:
        pid: The process that has the hooks; a child that is forked from it does not use MPI.
        hook: Prints an uncaught exception and ends the job.
        exit_code: Code of the ``SystemExit`` that ends the interpreter; None while there is none.
    """

    pid = 0
    hook: Hook | None = None
    exit_code: object = None


def abort_on_failure() -> None:
    """Have a failure of this rank end the job, with a message that names rank and node.

    For programs that call ``chainermn.create_communicator``; that of this package calls it itself.
    A second call does nothing. It may be combined with ``chainermn.global_except_hook``.
    """
    if _State.pid == os.getpid() or is_importing_main():
        return
    _State.pid = os.getpid()
    sys.excepthook = _State.hook = _excepthook(_printing_hook())
    threading.excepthook = _thread_excepthook(threading.excepthook)
    atexit.register(_end_at_exit)
    with contextlib.suppress(AttributeError):  # not public; runs before Python joins threads
        threading._register_atexit(_end_at_exit)  # type: ignore[attr-defined]
    _watch_exit_code()


# --- exceptions -------------------------------------------------------------------------------


def _printing_hook() -> Hook:
    """Return the current hook; ChainerMN's calls MPI_Abort, so the one that it replaced."""
    theirs = sys.modules.get("chainermn.global_except_hook")
    if theirs is not None and sys.excepthook is theirs._global_except_hook:
        return theirs._orig_except_hook or sys.__excepthook__
    return sys.excepthook


def _excepthook(before: Hook) -> Hook:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, error, trace)
        finally:
            is_interrupt = issubclass(kind, KeyboardInterrupt)
            _end_job(kind.__name__, 128 + signal.SIGINT if is_interrupt else 1)

    return hook


def _thread_excepthook(
    before: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    def hook(arguments: threading.ExceptHookArgs) -> None:
        try:
            before(arguments)
        finally:
            if not issubclass(arguments.exc_type, SystemExit):  # which ends the thread alone
                where = f" in {arguments.thread.name}" if arguments.thread else " in a thread"
                _end_job(arguments.exc_type.__name__ + where, 1)

    return hook


# --- sys.exit ---------------------------------------------------------------------------------


def _watch_exit_code() -> None:
    """Note the code that the interpreter ends with, which it passes to no hook.

    It reads the attribute ``code`` of SystemExit when no Python code runs, so the getter below has
    no calling frame. ``sys.exit`` is replaced: the built-in one may leave no exception object.
    """
    plain = SystemExit.__dict__["code"]
    if isinstance(plain, property):  # in a process that was forked after this
        return

    def code(error: SystemExit) -> object:
        value: object = plain.__get__(error)
        is_called_by_code = sys._getframe().f_back is not None
        if not is_called_by_code and threading.current_thread() is threading.main_thread():
            _State.exit_code = value
        return value

    (attributes,) = gc.get_referents(SystemExit.__dict__)
    attributes["code"] = property(code, plain.__set__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    plain_exit = sys.exit
    for module in list(sys.modules.values()):  # also after `from sys import exit`
        held: dict[str, object] = {}
        with contextlib.suppress(AttributeError):  # so that lazy modules load nothing
            held = object.__getattribute__(module, "__dict__")
        names = [name for name, value in [*held.items()] if value is plain_exit]
        for name in names:
            setattr(module, name, _exit)


def _exit(status: object = None, /) -> NoReturn:
    """Exit the interpreter by raising SystemExit(status)."""
    raise SystemExit(status)


# --- the end ----------------------------------------------------------------------------------


def _end_at_exit() -> None:
    """End the job if this process has failed, before MPI_Finalize."""
    code = _State.exit_code
    if code is not None and code != 0:
        _end_job(f"exit code {code}", code if isinstance(code, int) else 1)
    error = getattr(sys, "last_value", None)
    if error is not None and code is None and sys.excepthook is not _State.hook:
        _end_job(type(error).__name__, 1)


def _end_job(reason: str, exit_code: int) -> None:
    """Say which rank failed and call MPI_Abort, which ends this process.

    Does nothing if no other rank waits: without MPI, alone, in a process forked from a rank.
    """
    mpi = sys.modules.get("mpi4py.MPI")  # importing it would start MPI
    if mpi is None or os.getpid() != _State.pid:
        return
    if not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return
    rank, size, name = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size, this_node().name
    with contextlib.suppress(Exception):  # a broken stream must not keep the job from ending
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(
            f"overlapiter: rank {rank} of {size}, on node {name}, has failed ({reason}); "
            f"MPI_Abort ends the job, for the other ranks would wait for it\n"
        )
        sys.stderr.flush()
    mpi.COMM_WORLD.Abort(exit_code & 0xFF or 1)
