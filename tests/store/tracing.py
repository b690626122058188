"""Runs a function in a child, and stops it before any of its system calls, by ptrace.

Linux on x86-64 alone. No compiler is needed, and nothing of the child is changed but what is asked
for: it can be killed before a call, or the call can fail.
"""

from __future__ import annotations

import ctypes
import enum
import os
import platform
import signal
from collections.abc import Callable
from typing import NamedTuple

IS_POSSIBLE = platform.system() == "Linux" and platform.machine() == "x86_64"

_TRACEME, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 12, 13, 24, 0x4200
_TRACESYSGOOD, _EXITKILL = 0x01, 0x100000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_SCHED_YIELD = 24
#: Those that take a file or a directory and can fail because of the disk, by their numbers.
_NAMES = {
    0: "read", 1: "write", 2: "open", 4: "stat", 5: "fstat", 6: "lstat", 8: "lseek",
    17: "pread64", 18: "pwrite64", 21: "access", 73: "flock", 76: "truncate", 77: "ftruncate",
    82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 90: "chmod", 91: "fchmod",
    137: "statfs", 138: "fstatfs", 217: "getdents64", 257: "openat", 258: "mkdirat",
    262: "newfstatat", 263: "unlinkat", 264: "renameat", 285: "fallocate", 296: "pwritev",
    328: "pwritev2", 332: "statx",
}  # fmt: skip
#: Those of memory: they change nothing that another process sees, and vary from run to run.
_OF_MEMORY = {9, 10, 11, 12, 25, 28}
_MAY_CREATE = {"write", "pwrite64", "pwritev", "pwritev2", "ftruncate", "mkdir", "mkdirat"}
_MAY_CREATE |= {"rename", "fallocate"}
_FLAGS_ARGUMENT = {"open": "rsi", "openat": "rdx"}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class _Registers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_ulong)
        for name in [
            "r15",
            "r14",
            "r13",
            "r12",
            "rbp",
            "rbx",
            "r11",
            "r10",
            "r9",
            "r8",
            "rax",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        ]
    ]


class Call(NamedTuple):
    """A system call.

    Attributes:
        step: How often :func:`next_step` was called before it.
        name: Its name; its number if it has nothing to do with files.
        may_create: Whether it takes space on the disk, or may make a file.
    """

    step: int
    name: str
    may_create: bool

    @property
    def opens(self) -> bool:
        """Whether it takes a descriptor."""
        return self.name in _FLAGS_ARGUMENT

    @property
    def is_of_disk(self) -> bool:
        """Whether it can fail because of the disk."""
        return self.name in _NAMES.values()


class Do(enum.Enum):
    """What becomes of a call, beside the number of an error that it fails with."""

    GO_ON = enum.auto()
    KILL = enum.auto()


def next_step() -> None:
    """Begin to have calls counted, or another step of them."""
    os.sched_yield()


def traced(function: Callable[[], int], choose: Callable[[int, Call], Do | int]) -> int:
    """Run a function in a child, and choose before each call but those of memory what to do.

    Args:
        function: Returns the exit status; single-threaded.
        choose: Takes how many calls there were before, and the call; returns what to do, or the
            number of the error that the call fails with.

    Returns:
        The status as ``os.waitpid`` gives it.
    """
    pid = os.fork()
    if not pid:
        status = 127
        try:
            _ptrace(_TRACEME, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            status = function()
        finally:
            os._exit(status)
    os.waitpid(pid, 0)
    _ptrace(_SETOPTIONS, pid, _TRACESYSGOOD | _EXITKILL)
    step = n_calls = 0
    while (status := _to_next_stop(pid)) is None:  # before a call
        registers = _Registers()
        _ptrace(_GETREGS, pid, ctypes.addressof(registers))
        action: Do | int = Do.GO_ON
        if registers.orig_rax == _SCHED_YIELD:
            step += 1
        elif step and registers.orig_rax not in _OF_MEMORY:
            action = choose(n_calls, _call(step, registers))
            n_calls += 1
        if action is Do.KILL:
            os.kill(pid, signal.SIGKILL)
        elif action is not Do.GO_ON:
            registers.orig_rax = ctypes.c_ulong(-1).value
            _ptrace(_SETREGS, pid, ctypes.addressof(registers))
        status = _to_next_stop(pid)  # behind it
        if status is not None:
            return status
        if action is not Do.GO_ON:
            _ptrace(_GETREGS, pid, ctypes.addressof(registers))
            registers.rax = ctypes.c_ulong(-int(action)).value
            _ptrace(_SETREGS, pid, ctypes.addressof(registers))
    return status


def _to_next_stop(pid: int) -> int | None:
    """Let a child go on to the next end of a system call; return its status if it has ended."""
    number = 0
    while True:
        if _libc.ptrace(_SYSCALL, pid, None, number) and ctypes.get_errno() != 3:  # it is gone
            raise OSError(ctypes.get_errno(), "ptrace")
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return status
        number = os.WSTOPSIG(status)
        if number == _SYSCALL_STOP:
            return None


def _call(step: int, registers: _Registers) -> Call:
    name = _NAMES.get(registers.orig_rax, f"{registers.orig_rax}")
    may_create = name in _MAY_CREATE
    if name in _FLAGS_ARGUMENT:
        may_create = bool(getattr(registers, _FLAGS_ARGUMENT[name]) & os.O_CREAT)
    return Call(step, name, may_create)


def _ptrace(request: int, pid: int, data: int) -> None:
    if _libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")
