"""Which examples read which staged file. Pure.

Most files belong to one example. A file that several read must stay while the one that needs it
first still does, so their owners are kept: some hundred bytes for each example that has such files.
"""

from __future__ import annotations

import array
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

_NOBODY, _SEVERAL = 0, -1  # in the table, an example is its index + 1
_LOAD = 0.7


class Owners:
    """The owners of files, which are known by a number each, of 64 bits with a sign and not 0.

    A hash table in two arrays: a dictionary of a million files would take ten times as much. About
    ``n_files`` are expected. ``last_use`` has for each example the position at which it was handed
    out last, -1 for never; the caller keeps it up to date.
    """

    def __init__(self, n_files: int, last_use: NDArray[np.int64]) -> None:
        self._last_use = last_use
        self._last_uses: dict[int, int] = {}  # of files that several read
        self._make_table(max(8, 1 << int(n_files / _LOAD).bit_length()))
        self._several: dict[int, array.array[int]] = {}
        self._shared: dict[int, dict[int, None]] = {}  # in order, of each example
        self._soonest: dict[int, tuple[int, int]] = {}

    def _make_table(self, size: int) -> None:
        self._mask = size - 1
        self._files = np.zeros(size, np.int64).data
        self._owners = np.zeros(size, np.int64).data
        self._n_files = 0

    def add(self, index: int, file_id: int) -> bool:
        """Note that an example reads a file; return whether it is the first one that does."""
        place = self._find(file_id)
        owner = self._owners[place]
        if owner == _NOBODY:
            self._files[place], self._owners[place] = file_id, index + 1
            self._n_files += 1
            if self._n_files > _LOAD * self._mask:
                self._grow()
            return True
        if owner == _SEVERAL:
            if file_id not in self._shared.get(index, ()):
                self._join(index, file_id)
        elif owner != index + 1:
            self._owners[place] = _SEVERAL
            self._several[file_id] = array.array("i")
            self._join(owner - 1, file_id)
            self._join(index, file_id)
        return False

    def _join(self, index: int, file_id: int) -> None:
        self._several[file_id].append(index)
        self._shared.setdefault(index, {})[file_id] = None
        self._soonest.pop(file_id, None)
        last_use = int(self._last_use[index])
        self._last_uses[file_id] = max(last_use, self._last_uses.get(file_id, -1))

    def hand_out(self, indices: list[int]) -> None:
        """Take note that examples are handed out; ``last_use`` says where."""
        if self._several:
            for index in indices:
                for file_id in self.shared_files(index):
                    self._last_uses[file_id] = int(self._last_use[index])

    def shared_files(self, index: int) -> Collection[int]:
        """Return those files of an example that others read, too."""
        return self._shared.get(index, ())

    def of(self, file_id: int) -> Sequence[int]:
        """Return the examples that read a file which several do."""
        return self._several[file_id]

    def needed_sooner(self, index: int, next_use: NDArray[np.int64], settled: int) -> set[int]:
        """Return those files of an example that another one reads before it does.

        ``next_use`` has a position for each example; all that was handed out before ``settled`` has
        been read.
        """
        own = int(next_use[index])
        return {
            file_id
            for file_id in self.shared_files(index)
            if self._last_uses[file_id] >= settled
            or self._first_use(file_id, next_use) < (own, index)
        }

    def first_readers(
        self, indices: list[int], next_use: NDArray[np.int64], settled: int
    ) -> list[int]:
        """Return for the files that some examples share with others which one reads each first.

        Those that are in use still are left out; for the arguments see :meth:`needed_sooner`.
        """
        file_ids = (
            {f for index in indices for f in self.shared_files(index)} if self._shared else ()
        )
        idle = [file_id for file_id in file_ids if self._last_uses[file_id] < settled]
        return [self._first_use(file_id, next_use)[1] for file_id in idle]

    def _first_use(self, file_id: int, next_use: NDArray[np.int64]) -> tuple[int, int]:
        """Return the next use of a file and the example that it is for."""
        known = self._soonest.get(file_id)
        if known is None or next_use[known[1]] != known[0]:  # that use is over
            owners = np.frombuffer(self._several[file_id], np.int32)
            soonest = int(owners[np.argmin(next_use[owners])])
            known = self._soonest[file_id] = int(next_use[soonest]), soonest
        return known

    def forget_uses(self) -> None:
        """Take note that the next uses have changed otherwise than by being over."""
        self._soonest.clear()

    def restart(self) -> None:
        """Take note that nothing is handed out any more."""
        self._last_uses = dict.fromkeys(self._last_uses, -1)

    def _find(self, file_id: int) -> int:
        files, mask = self._files, self._mask
        place = file_id & mask
        while files[place] not in (file_id, 0):
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        files, owners = self._files, self._owners
        self._make_table(2 * len(files))
        for file_id, owner in zip(files, owners, strict=True):
            if owner != _NOBODY:
                place = self._find(file_id)
                self._files[place], self._owners[place] = file_id, owner
                self._n_files += 1
