"""Where the files of examples lie, as far as this run has compared them with their sources."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from overlapiter.store.extents import EXTENT_BYTES

#: Of what the table has of an example: nothing, its one file, or the one that it had.
_NOTHING, _ONE_FILE, _GONE = 0, 1, 2


class KnownExtents:
    """The packed extents of every example that needs no prefetcher: it can be read at once.

    Most examples read one file: theirs lie in one piece of memory, which takes 56 bytes for each
    example once it is used.
    """

    def __init__(self, n_examples: int) -> None:
        self._state_array = np.zeros(n_examples, np.uint8)
        self._states = self._state_array.data
        self._memory = mmap.mmap(-1, max(1, n_examples) * EXTENT_BYTES)
        self._table = np.frombuffer(self._memory, f"V{EXTENT_BYTES}")
        self._others: dict[int, bytes] = {}  # of examples that read none, or several

    def put(self, index: int, extents: bytes) -> None:
        """Note the extents of an example: all its files."""
        if len(extents) == EXTENT_BYTES:
            self._memory[index * EXTENT_BYTES : (index + 1) * EXTENT_BYTES] = extents
            self._states[index] = _ONE_FILE
        else:
            self._others[index] = extents
            self._states[index] = _NOTHING

    def put_one_file_each(self, indices: NDArray[np.int64], extents: bytes) -> None:
        """Note the extents of several examples, each of which has one file."""
        self._table[indices] = np.frombuffer(extents, self._table.dtype)
        self._state_array[indices] = _ONE_FILE

    def get(self, index: int) -> bytes | None:
        """Return the extents of an example; None if they are not known."""
        if self._states[index] == _ONE_FILE:
            return self._memory[index * EXTENT_BYTES : (index + 1) * EXTENT_BYTES]
        return self._others.get(index)

    def last(self, index: int) -> bytes:
        """Return the extents that an example has or had; nothing if they are not known."""
        if self._states[index] == _GONE:
            return self._memory[index * EXTENT_BYTES : (index + 1) * EXTENT_BYTES]
        return self.get(index) or b""

    def forget(self, index: int) -> None:
        """Have an example looked at by a prefetcher the next time."""
        if self._states[index] == _ONE_FILE:
            self._states[index] = _GONE
        self._others.pop(index, None)

    def forget_all(self) -> None:
        """Have every example looked at by a prefetcher the next time."""
        self._state_array[self._state_array == _ONE_FILE] = _GONE
        self._others.clear()
