"""Data-parallel training with ChainerMN: starting in the right order, and ending together.

The names are loaded on first use: importing this package alone starts no MPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communicator import create_communicator as create_communicator
    from .failure import add_hook as add_hook
    from .startup import start_forkserver as start_forkserver

__all__ = ["add_hook", "create_communicator", "start_forkserver"]

_HOMES = {
    "add_hook": ".failure",
    "create_communicator": ".communicator",
    "start_forkserver": ".startup",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
