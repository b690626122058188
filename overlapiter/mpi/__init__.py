"""Training over MPI: with ChainerMN, data-parallel, or with a server and workers.

The names are loaded on first use: importing this package alone starts no MPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communicator import create_communicator as create_communicator
    from .communicator import start_forkserver as start_forkserver
    from .failure import abort_on_failure as abort_on_failure
    from .searching.run import search as search
    from .training.run import train as train

__all__ = ["abort_on_failure", "create_communicator", "search", "start_forkserver", "train"]

_HOMES = {
    "abort_on_failure": ".failure",
    "create_communicator": ".communicator",
    "search": ".searching.run",
    "start_forkserver": ".communicator",
    "train": ".training.run",
}


if not TYPE_CHECKING:  # a checker would take any name for one of them

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
