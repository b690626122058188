"""Files that take the place of others at once."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def replaced(path: str, new: str = "") -> Iterator[IO[bytes]]:
    """Give a new file, which takes the place of another at once when the ``with`` block ends.

    A reader sees all of it, or what was there before. If the block does not end well, nothing is
    left of it.

    Args:
        path: Where it is to be.
        new: Where it is meanwhile: what a killed process has left there is written over. By default
            a name that no other process takes.

    Raises:
        OSError: It cannot be written.
    """
    mode = "wb" if new else "xb"
    new = new or os.path.join(os.path.dirname(path), f".overlapiter-{secrets.token_hex(8)}")
    try:
        with open(new, mode) as file:  # to close it may fail, too
            yield file
        os.replace(new, path)
    except BaseException:  # an interruption may come when it was just made, or has its place
        with contextlib.suppress(OSError):  # the first error says what failed
            os.unlink(new)
        raise
