"""What the operating system does for the workers: forking, naming, dying together."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import random
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import util
from typing import NoReturn

import numpy as np

# From <malloc.h> of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_FREE_BYTES = 64 << 20

#: A look that comes so long after the last one comes after a pause.
_LATE_SECONDS = 1.5
_STDERR_FD = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def set_name(name: str) -> None:
    """Name this process, at most 15 characters, as ``top`` and ``ps`` show it."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def run_as_batch() -> None:
    """Have this process, and its children, not interrupt others whenever they can go on.

    A message would wake the supervisor on the core of the trainer that has sent it, and a read of
    the slow store ends every few hundred microseconds: trainer and file readers go on meanwhile,
    and then what has come is taken together. The share of the cores stays the same. A scheduling
    policy that the user has chosen stays.
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # forbidden in some containers; it is only cheaper
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before we asked
        os._exit(1)


def kill_family(pid: int) -> None:
    """Kill a process, and those that it has started, but for those with a session of their own.

    A pool of processes that a dataset has made, say, would wait for ever.
    """
    family = [pid]
    for each in family:  # which grows
        with contextlib.suppress(OSError):  # it has ended, or this kernel does not tell
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children") as children:
                    family += map(int, children.read().split())
    for each in family:
        with contextlib.suppress(ProcessLookupError):
            if each == pid or os.getsid(each) == os.getsid(0):
                os.kill(each, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended, be it reaped or not."""
    return _state_of(pid) not in ("", "Z", "X")


class Stops:
    """Tells what is stopped at two looks in a row; a process that a debugger holds is not.

    After a pause it takes one look more: a job that is suspended as a whole stops and goes on one
    process after the other.
    """

    def __init__(self) -> None:
        self._n_stopped = 0  # looks in a row
        self._looked_seconds = 0.0

    def is_still_stopped(self, pid: int) -> bool:
        """Look at a process, once a second; return whether it was stopped all the time."""
        before_seconds, self._looked_seconds = self._looked_seconds, time.monotonic()
        self._n_stopped = self._n_stopped + 1 if _state_of(pid) == "T" else 0
        is_late = self._looked_seconds > before_seconds + _LATE_SECONDS
        return self._n_stopped > (2 if is_late else 1)


def _state_of(pid: int) -> str:
    """Return the letter of a process's state, as ``ps`` shows it; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class BusyClock:
    """Tells how long the main thread of this process was busy: not while it waited for a core.

    Where the kernel does not tell how long that was, it counts as busy.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def now(self) -> tuple[int, int]:
        """Return nanoseconds since some moment, and those of them for which it had a core."""
        if self._fd < 0:
            return time.monotonic_ns(), time.process_time_ns()
        cpu_ns, delay_ns, _ = os.pread(self._fd, 64, 0).split()
        return time.monotonic_ns() - int(delay_ns), int(cpu_ns)


def keep_freed_memory() -> None:
    """Have this process reuse the memory of one example for the next.

    By default the C library returns the large buffers of a decoded image to the system and asks
    for them again at the next one; the page faults of that take a third of a small image's time.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that is accepted
        _libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_FREE_BYTES)


def freeze() -> None:
    """Keep the garbage collector off the objects that exist now, so children share their pages."""
    gc.collect()
    gc.freeze()


def own_file_offsets() -> None:
    """Give each regular file inherited by fork an offset of its own.

    A dataset that opened a file when it was unpickled would otherwise read from wherever another
    worker has just left that file.
    """
    for name in os.listdir("/proc/self/fd"):
        fd, path = int(name), f"/proc/self/fd/{name}"
        try:
            if fd <= _STDERR_FD or not stat.S_ISREG(os.fstat(fd).st_mode):
                continue
            if os.readlink(path).startswith("/memfd:"):
                continue
            own_fd = os.open(path, fcntl.fcntl(fd, fcntl.F_GETFL))
        except OSError:  # the listing's own descriptor, or a file that may not be opened again
            continue
        os.lseek(own_fd, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own_fd, fd, inheritable=False)
        os.close(own_fd)


def fork_worker(name: str, run: Callable[[], None], report: Callable[[str], None]) -> int:
    """Fork a worker that calls ``run`` and exits; return its pid.

    Called in the supervisor alone, which has one thread and never touched MPI or CUDA. The worker
    has random streams of its own. If ``run`` raises, it calls ``report`` with the traceback and
    exits with status 1.
    """
    parent_pid = os.getpid()
    flush_output()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(parent_pid)
        set_name(name)
        own_file_offsets()
        random.seed()
        np.random.seed()  # the global stream is what datasets use
        # As multiprocessing does: Chainer's PickleDataset, for example, opens its file anew then.
        util._run_after_forkers()  # type: ignore[attr-defined]  # no public one; unknown to mypy
        run()
        status = 0
    except BaseException:  # nothing may run on into the supervisor's stack
        report(traceback.format_exc())
    finally:
        try:
            flush_output()
        finally:
            os._exit(status)


def end_own_fork(error: BaseException | None) -> NoReturn:
    """End a process that the dataset has forked and that came back from its code, as Python would.

    Nothing else of the worker may run in it: it has the worker's channel, and would answer.
    """
    status = 1
    try:
        if error is None:
            status = 0
        elif not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif error.code is None or isinstance(error.code, int):
            status = (error.code or 0) & 0xFF
        else:
            sys.stderr.write(f"{error.code}\n")
        flush_output()
    finally:
        os._exit(status)


def flush_output() -> None:
    """Flush what was printed, as far as it can be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # a broken pipe, or closed
                stream.flush()
