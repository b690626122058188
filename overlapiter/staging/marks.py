"""The mark of a subdirectory of the staging directory: ``source.json``, which source it mirrors.

The name of the subdirectory holds only a hash of the source root; the mark lets commands find
back from a copy to its source. Staging itself does not need it.
"""

from __future__ import annotations

import contextlib
import json
import os

MARK_FILE = "source.json"
_VERSION = 1
_MOST_BYTES = 64 << 10


def write_mark(subdirectory: str, source: str) -> None:
    """Say which source root a subdirectory mirrors. A disk that fails is passed by.

    Any number of processes may do so at once: all of them write the same.
    """
    text = json.dumps({"version": _VERSION, "source": source}).encode() + b"\n"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        fd = os.open(os.path.join(subdirectory, MARK_FILE), flags, 0o600)
        try:
            # Somebody's precious file may have been given this name, too.
            if os.fstat(fd).st_nlink == 1 and os.pread(fd, len(text) + 1, 0) != text:
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))
        finally:
            os.close(fd)


def read_mark(subdirectory: str) -> str | None:
    """Return the source root that a subdirectory mirrors; None if it has no mark."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(os.path.join(subdirectory, MARK_FILE), flags)
    except OSError:
        return None
    try:
        source = json.loads(os.read(fd, _MOST_BYTES))["source"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        os.close(fd)
    return source if isinstance(source, str) else None
