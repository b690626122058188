"""Counts how often the files of a folder are opened, by whatever process."""

from __future__ import annotations

import collections
import ctypes
import os
import select
import struct
import threading

_LOOK_SECONDS = 0.01
_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")


class Opens(threading.Thread):
    """Counts how often each file of a folder is opened, until :meth:`end`.

    Two opens of one file with nothing between them may be counted as one: the kernel merges them.

    Args:
        folder: The folder.

    Attributes:
        counts: How often, by name.
        n_lost: How often the kernel had to drop events.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(daemon=True)
        self.counts: collections.Counter[str] = collections.Counter()
        self.n_lost = 0
        self._has_ended = threading.Event()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {folder}: is inotify used up?")

    def run(self) -> None:
        """Count."""
        while True:
            has_ended = self._has_ended.is_set()
            if not select.select([self._fd], [], [], _LOOK_SECONDS)[0]:
                if has_ended:  # and nothing is left that was opened before
                    return
                continue
            events, start = os.read(self._fd, 1 << 16), 0
            while start < len(events):
                watch, _, _, n_bytes = _EVENT.unpack_from(events, start)
                start += _EVENT.size
                self.n_lost += watch < 0
                if n_bytes:
                    self.counts[events[start : start + n_bytes].rstrip(b"\0").decode()] += 1
                start += n_bytes

    def end(self) -> None:
        """Count what was opened before, and stop."""
        self._has_ended.set()
        self.join()
        os.close(self._fd)
