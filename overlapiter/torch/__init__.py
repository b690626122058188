"""PyTorch's side: only what needs PyTorch, imported on first use, as a file reader may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlapiter.firstuse import names_of

if TYPE_CHECKING:
    from overlapiter.torch.communicator import Communicator as Communicator
    from overlapiter.torch.loader import DataLoader as DataLoader

_HOMES = {"Communicator": ".communicator", "DataLoader": ".loader"}
__all__ = [*_HOMES]

if not TYPE_CHECKING:  # a checker would take any name for one of them
    __getattr__, __dir__ = names_of(globals(), _HOMES)
