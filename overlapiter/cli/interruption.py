"""Ctrl-C while a command is still being loaded: there is nothing to end yet, so it just exits.

An exception from within an import would show its traceback, or be taken for another one. Imports
next to nothing, for it is loaded first.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_EXIT_STATUS = 128 + signal.SIGINT


def exit_at_interrupt() -> None:
    """Let Ctrl-C exit at once; where it is ignored it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_at_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_number: int, _frame: FrameType | None) -> None:
    os._exit(_EXIT_STATUS)
