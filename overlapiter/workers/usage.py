"""What a process of the pipeline uses of the node, in its own row of the board."""

from __future__ import annotations

import os
import time

from overlapiter.board import Counter, Row

#: How often to look at the memory, which takes 20 microseconds.
_LOOK_AFTER_NS = 1_000_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Not the one of a file reader's hook, which notes what the dataset opens.
_open = open


class Usage:
    """Notes the cores and the memory of this process in its row; a replacement counts on."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._cpu_ns = 0
        self._look_at_ns = 0

    def note(self) -> None:
        """Note what is used now. Takes about a microsecond."""
        cpu_ns = time.process_time_ns()
        self._row.add(Counter.CPU_NS, cpu_ns - self._cpu_ns)
        self._cpu_ns = cpu_ns
        now_ns = time.monotonic_ns()
        if now_ns >= self._look_at_ns:
            self._look_at_ns = now_ns + _LOOK_AFTER_NS
            self._row.put(Counter.MEMORY_BYTES, _own_bytes())


def _own_bytes() -> int:
    """Return what is resident of this process, without what it shares in files."""
    try:
        with _open("/proc/self/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:  # out of descriptors, say
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES
