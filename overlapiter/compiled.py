"""The modules in C: there where a compiler has built them, and wanted."""

from __future__ import annotations

import importlib
import os
from typing import Any

#: Has Python and NumPy do all their work.
_SWITCH = "OVERLAPITER_NO_C"


def compiled(name: str) -> Any:
    """Return a module in C; None if there was no compiler, it is another system's, or unwanted."""
    if os.environ.get(_SWITCH):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
