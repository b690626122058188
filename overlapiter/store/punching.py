"""Space on the disk: allocated before it is written, and given back as holes.

Python has no binding of ``fallocate`` with flags. The call goes through ctypes, which lets other
threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import os

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def allocate(fd: int, start: int, size_bytes: int) -> None:
    """Have the disk set blocks aside for a range of a file, whose size stays as it is.

    Raises:
        OSError: There is no room (ENOSPC), or the file system cannot do it (EOPNOTSUPP).
    """
    _call(fd, _KEEP_SIZE, start, size_bytes)


def punch_hole(fd: int, start: int, size_bytes: int) -> None:
    """Give the blocks of a range back to the disk; who reads it meanwhile sees zeros.

    Costs 8 to 20 µs on ext4, and several times as much, with a wait for the device, where that is
    mounted with ``discard``. Raises OSError if the disk failed, or the file system has no holes
    (EOPNOTSUPP).
    """
    _call(fd, _KEEP_SIZE | _PUNCH_HOLE, start, size_bytes)


def _call(fd: int, mode: int, start: int, size_bytes: int) -> None:
    while _fallocate(fd, mode, start, size_bytes):
        number = ctypes.get_errno()
        if number != 4:  # EINTR
            raise OSError(number, os.strerror(number))
