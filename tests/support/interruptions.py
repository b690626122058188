"""Interrupts a program as Ctrl-C does, but at a place that is chosen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def interrupted_at(n_lines: int, iterator: Iterator[Any], *files: str) -> tuple[bool, Any]:
    """Take a mini-batch, interrupted before the n-th line of files, if there is one.

    Returns:
        Whether it was interrupted, and the mini-batch; None if there is none.
    """
    left = n_lines

    def count(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return count

    batch = None
    before = sys.gettrace()
    sys.settrace(count)
    with contextlib.suppress(KeyboardInterrupt):
        batch = next(iterator)
    sys.settrace(before)
    return left <= 0, batch
