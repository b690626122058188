"""PyTorch's side: only what needs PyTorch, imported on first use, as a file reader may not."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlapiter.torch.communicator import Communicator as Communicator
    from overlapiter.torch.loader import DataLoader as DataLoader

_HOMES = {"Communicator": "communicator", "DataLoader": "loader"}


if not TYPE_CHECKING:  # a checker would take any name for one of them

    def __getattr__(name: str) -> object:
        """Load a public name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
