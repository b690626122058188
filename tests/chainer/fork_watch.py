"""Watches a process for new processes: in the interpreter, in the C library, and in the kernel.

Dangerous beside InfiniBand is a copy of the address space, which ``fork`` makes. ``vfork`` and
``posix_spawn`` copy nothing: the child borrows the memory, and the caller waits, until ``exec``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

#: Each copy of this process's memory while it was watched, by what noticed it.
copies: list[str] = []

#: Each process that Python's own modules started meanwhile, and said so.
starts: list[str] = []

_COPIES = ("os.fork", "os.forkpty")
_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "os.exec")

# From <asm/unistd.h>, <linux/seccomp.h>, <linux/filter.h>, <linux/sched.h> and <sys/prctl.h>.
_CALLS = {
    "x86_64": {"clone": 56, "fork": 57, "vfork": 58, "seccomp": 317, "clone3": 435},
    "aarch64": {"clone": 220, "seccomp": 277, "clone3": 435},
}
#: Whether :func:`forbid_processes` knows this kind of machine.
CAN_FORBID = platform.machine() in _CALLS

_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_OFFSET, _FLAGS_OFFSET, _CLONE_THREAD = 0, 16, 0x10000
_KILL, _ALLOW, _FAIL = 0x80000000, 0x7FFF0000, 0x00050000
_SET_FILTER, _ALL_THREADS, _NO_NEW_PRIVILEGES = 1, 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def _hear(event: str, _: object) -> None:
    if event in _COPIES:
        copies.append(event)
    elif event in _STARTS:
        starts.append(event)


@ctypes.CFUNCTYPE(None)
def _before_fork() -> None:
    copies.append("fork of the C library")


def watch() -> None:
    """Begin to watch this process; it cannot be ended."""
    sys.addaudithook(_hear)
    # What pthread_atfork calls: each fork of C code is noticed, too; vfork copies nothing.
    _libc.__register_atfork(_before_fork, None, None, None)


def forbid_processes() -> None:
    """Have the kernel kill this process, and what it starts, when any of its threads starts one.

    Threads may be started. Processes that exist already are not concerned.
    """
    calls = _CALLS[platform.machine()]
    instructions: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _NUMBER_OFFSET)]
    for name, answer in (
        ("fork", _KILL),
        ("vfork", _KILL),
        ("clone3", _FAIL | errno.ENOSYS),  # whose flags cannot be seen; clone is taken instead
    ):
        if name in calls:
            instructions += [(_IF_EQUAL, 0, 1, calls[name]), (_RETURN, 0, 0, answer)]
    instructions += [(_IF_EQUAL, 1, 0, calls["clone"]), (_RETURN, 0, 0, _ALLOW)]
    instructions += [(_LOAD, 0, 0, _FLAGS_OFFSET)]
    instructions += [(_IF_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW)]
    instructions += [(_RETURN, 0, 0, _KILL)]
    lines = [_Instruction(*instruction) for instruction in instructions]
    program = _Program(len(lines), (_Instruction * len(lines))(*lines))
    if os.geteuid():
        _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(_libc.syscall(calls["seccomp"], _SET_FILTER, _ALL_THREADS, ctypes.byref(program)))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
