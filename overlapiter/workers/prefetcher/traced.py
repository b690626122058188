"""Records each read of the slow store in the trace: a row for each that is in flight."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from overlapiter.origins.origin import Origin, Original, OriginalFile
from overlapiter.tracing import Tracing


class TracedOrigin:
    """Gives what another origin gives, and records how long it took.

    Args:
        origin: The other one.
        trace: Where to record it.

    Attributes:
        is_local: As of the other one.
    """

    def __init__(self, origin: Origin, trace: Tracing) -> None:
        self._origin = origin
        self._trace = trace
        self.is_local = origin.is_local

    def stat(self, path: str) -> Original:
        """Tell what a file is now."""
        with self._recorded("stat", path):
            return self._origin.stat(path)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[OriginalFile]:
        """Open a file, for the length of a ``with`` block."""
        with self._recorded("read slow store", path), self._origin.open(path) as file:
            yield file

    @contextlib.contextmanager
    def _recorded(self, name: str, path: str) -> Iterator[None]:
        row, begun_ns = self._trace.take_lane("I/O slot"), time.monotonic_ns()
        try:
            yield
        finally:
            end_ns, file = time.monotonic_ns(), os.path.basename(path)
            self._trace.add(name, "staging", begun_ns, end_ns, row=row, file=file)
            self._trace.give_lane_back(row)
