"""Files that no process can open before the test lets it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def held_back(*paths: Path) -> Iterator[Callable[[Path], None]]:
    """Have every open of these files block, by leases; gives the function that lets one go."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when a process wants to open one
    fds = {}
    try:
        for path in paths:
            fds[path] = os.open(path, os.O_RDWR)
            fcntl.fcntl(fds[path], fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield lambda path: fcntl.fcntl(fds[path], fcntl.F_SETLEASE, fcntl.F_UNLCK) and None
    finally:
        for fd in fds.values():
            os.close(fd)
        signal.signal(signal.SIGIO, before)
