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
    """

    def __init__(self, origin: Origin, trace: Tracing) -> None:
        self._origin = origin
        self._trace = trace

    def stat(self, path: str) -> Original:
        """Tell what a file is now."""
        begun_ns = time.monotonic_ns()
        try:
            return self._origin.stat(path)
        finally:
            self._record("stat", path, begun_ns)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[OriginalFile]:
        """Open a file, for the length of a ``with`` block."""
        begun_ns = time.monotonic_ns()
        try:
            with self._origin.open(path) as file:
                yield file
        finally:
            self._record("read slow store", path, begun_ns)

    def _record(self, name: str, path: str, begun_ns: int) -> None:
        end_ns, file = time.monotonic_ns(), os.path.basename(path)
        self._trace.add(name, "staging", begun_ns, end_ns, row="I/O slot", file=file)
