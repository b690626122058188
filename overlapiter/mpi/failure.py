"""Ends the whole job when a rank fails: the others would wait for it for ever.

An uncaught exception ends a rank, but MPI's launcher notices only when the process has ended, and
before that mpi4py calls MPI_Finalize, which waits for ranks that wait for this one. So these events
are printed and then end the job by MPI_Abort:

* an uncaught exception in the main thread (``sys.excepthook``) or in another one
  (``threading.excepthook``); ``next()`` raises the exceptions of worker processes;
* ``sys.exit`` with an exit code other than 0, before Python's other steps at exit.

Python tells no hook of ``raise SystemExit(3)``: the runner (``python -m overlapiter.mpi``) sees it.
The launcher itself ends the job when a rank is killed.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import inspect
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
    """The hooks of this process."""

    pid = 0  # which has the hooks; a child that is forked from it does not use MPI
    hook: Hook | None = None  # prints an uncaught exception and ends the job


def abort_on_failure() -> None:
    """Have a failure of this rank end the job, with a message that names rank and node.

    For programs that call ``chainermn.create_communicator``; that of this package calls it itself.
    A second call does nothing. It may be combined with ``chainermn.global_except_hook``.

    An exit code is noticed if it is given to ``sys.exit``. For ``raise SystemExit(3)``, have the
    program run by ``python -m overlapiter.mpi``, which calls this function, too.
    """
    if _State.pid == os.getpid() or is_importing_main():
        return
    _State.pid = os.getpid()
    sys.excepthook = _State.hook = _excepthook(_printing_hook())
    threading.excepthook = _thread_excepthook(threading.excepthook)
    atexit.register(_end_at_exit)
    _watch_exits()


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


class _Exit(SystemExit):
    """What ``sys.exit`` raises: notices that it ends the program, which no hook is told.

    The interpreter then reads ``code``, in the main thread, when no Python code runs any more, and
    so before it waits for threads and for MPI_Finalize.
    """

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        frame = inspect.currentframe()
        if name == "code" and frame is not None and frame.f_back is None:
            end_job_by(self, value)
        return value

    def __reduce__(self) -> tuple[type[SystemExit], tuple[object, ...]]:
        return SystemExit, self.args  # another process ends as it likes


def _exit(code: object = None) -> NoReturn:
    """Exit the interpreter by raising SystemExit(code)."""
    is_main = threading.current_thread() is threading.main_thread()
    raise (_Exit if is_main else SystemExit)(code)  # in others it ends the thread alone


def _watch_exits() -> None:
    """Replace ``sys.exit``, wherever it was imported, and ``exit`` and ``quit`` of ``site``."""
    if sys.exit is _exit:  # in a process that was forked after this
        return
    of_site = [getattr(builtins, name, None) for name in ("exit", "quit")]
    plain = {id(each) for each in of_site if type(each).__module__ == "_sitebuiltins"}
    plain.add(id(sys.exit))
    for module in list(sys.modules.values()):
        held: dict[str, object] = {}
        with contextlib.suppress(AttributeError):  # so that lazy modules load nothing
            held = object.__getattribute__(module, "__dict__")
        names = [name for name, value in [*held.items()] if id(value) in plain]
        for name in names:
            setattr(module, name, _exit)


# --- the end ----------------------------------------------------------------------------------


def end_job_by(error: BaseException, code: object = None) -> None:
    """End the job by an exception that ends the program, after it was printed, if it is a failure.

    A SystemExit with code 0 or None is no failure.
    """
    if isinstance(error, SystemExit):
        if isinstance(code, int):
            if code:
                _end_job(f"exit code {code}", code)
        elif code is not None:
            _end_job(f"exit code {code}", 1, f"{code}\n")
    elif _is_awaited():
        sys.excepthook(type(error), error, error.__traceback__)
        _end_job(type(error).__name__, 1)  # if that is not our hook


def _end_at_exit() -> None:
    """End the job if an exception was printed by a hook that took the place of ours."""
    error = getattr(sys, "last_value", None)
    if error is not None and sys.excepthook is not _State.hook:
        _end_job(type(error).__name__, 1)


def _is_awaited() -> bool:
    """Return whether other ranks wait for this one: not without MPI, nor in a forked process."""
    mpi = sys.modules.get("mpi4py.MPI")  # importing it would start MPI
    if mpi is None or os.getpid() != _State.pid:
        return False
    return bool(mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1)


def _end_job(reason: str, exit_code: int, last_words: str = "") -> None:
    """Say which rank failed and call MPI_Abort, which ends this process, if other ranks wait."""
    if not _is_awaited():
        return
    mpi = sys.modules["mpi4py.MPI"]
    rank, size, name = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size, this_node().name
    with contextlib.suppress(Exception):  # a broken stream must not keep the job from ending
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(
            f"{last_words}overlapiter: rank {rank} of {size}, on node {name}, has failed "
            f"({reason}); MPI_Abort ends the job, for the other ranks would wait for it\n"
        )
        sys.stderr.flush()
    mpi.COMM_WORLD.Abort(exit_code & 0xFF or 1)
