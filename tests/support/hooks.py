"""Takes away a hook of ``open``, which a worker keeps until it ends."""

from __future__ import annotations

import builtins

from overlapiter import openhook


def uninstall() -> None:
    """Put back the ``open`` that the last hook has found."""
    openhook._replace_open(builtins.open, builtins.open.__wrapped__)
    openhook._current_hook = None
