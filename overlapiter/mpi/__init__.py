"""Training over MPI: with ChainerMN, data-parallel, or with a server and workers.

The names are loaded on first use: importing this package alone starts no MPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlapiter.firstuse import names_of

if TYPE_CHECKING:
    from .communicator import create_communicator as create_communicator
    from .communicator import start_forkserver as start_forkserver
    from .failure import abort_on_failure as abort_on_failure
    from .searching.run import search as search
    from .training.run import train as train

_HOMES = {
    "abort_on_failure": ".failure",
    "create_communicator": ".communicator",
    "search": ".searching.run",
    "start_forkserver": ".communicator",
    "train": ".training.run",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:  # a checker would take any name for one of them
    __getattr__, __dir__ = names_of(globals(), _HOMES)
