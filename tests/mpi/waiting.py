"""How a model that a test trains waits for what another rank does; it imports nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail if it does not come to hold."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the other ranks did not come so far"
        time.sleep(0.005)
