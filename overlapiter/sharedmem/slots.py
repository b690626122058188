"""The two ends of a slot: a file reader writes examples into it, the trainer views them.

An example is *ordinary* if it has the structure of the layout and each of its arrays is an
ordinary row. A file reader reports None on a part of a mini-batch whose examples are all ordinary;
else one entry for each example: None for an ordinary one, an :class:`ExampleError` for one that is
left out, or ``(structure, [leaf entry, ...])``, with None for the structure of the layout. A leaf
entry is ``(IN_COLUMN,)``, ``(IN_ROW, dtype, shape)`` or ``(LOOSE, value)``.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from overlapiter.errors import ExampleError

from .images import write
from .layout import (
    Array,
    Column,
    Flatten,
    Layout,
    Structure,
    assemble,
    flatten,
    leaf_kinds,
    unflatten,
)
from .pagelocks import PageLocker
from .segments import Segment, Slot

IN_COLUMN, IN_ROW, LOOSE = range(3)

LeafEntry = tuple[Any, ...]
ExampleEntry = tuple[Structure | None, list[LeafEntry]]
Report = list[ExampleEntry | ExampleError | None] | None


class SlotWriter:
    """Writes examples, which are taken apart as by ``layout_of``, into slots of one layout."""

    def __init__(self, layout: Layout, take_apart: Flatten = flatten) -> None:
        self.layout = layout
        self._take_apart = take_apart
        self._widest_bytes = layout.widest_row_bytes
        #: The size of the largest array so far that later rows may hold, for each column.
        self.wanted_row_bytes = [column.row_bytes for column in layout.columns]
        self._is_flat_columns = "loose" not in layout.kinds
        self._columns: dict[Slot, list[Array]] = {}

    def wants_wider_rows(self) -> bool:
        """Return whether an array did not fit into its row."""
        return self.wanted_row_bytes != [column.row_bytes for column in self.layout.columns]

    def write(self, segment: Segment | None, slot: Slot | None, row: int, example: object) -> Any:
        """Write one example to a row, with one copy of each array; return its entry of the report.

        The segment is None where the layout has no columns.
        """
        structure, leaves = self._take_apart(example)
        same = structure == self.layout.structure
        if segment is None or slot is None:
            return (None if same else structure, [(LOOSE, leaf) for leaf in leaves])
        views = self._columns.get(slot)
        if views is None:
            views = self._columns[slot] = column_arrays(
                self.layout, self.layout.n_rows, segment.memory, slot.offset_bytes
            )
        if same and self._is_flat_columns and self._write_ordinary(views, row, leaves):
            return None
        kinds = self.layout.kinds if same else leaf_kinds(structure)
        return None if same else structure, self._write_any(segment, slot, row, kinds, leaves)

    def _write_ordinary(self, views: list[Array], row: int, leaves: list[Any]) -> bool:
        for column, leaf in zip(self.layout.columns, leaves, strict=True):
            if not column.holds(leaf):
                return False
        for view, leaf in zip(views, leaves, strict=True):
            write(view[row, ...], leaf)  # an array, also of a number
        return True

    def _write_any(
        self, segment: Segment, slot: Slot, row: int, kinds: list[str], leaves: list[Any]
    ) -> list[LeafEntry]:
        entries: list[LeafEntry] = []
        number = 0
        for kind, leaf in zip(kinds, leaves, strict=True):
            if kind == "loose" or number >= len(self.layout.columns):
                entries.append((LOOSE, leaf))
                continue
            column = self.layout.columns[number]
            if self.wanted_row_bytes[number] < leaf.nbytes <= self._widest_bytes:
                self.wanted_row_bytes[number] = leaf.nbytes
            number += 1
            if not column.fits(leaf):
                entries.append((LOOSE, leaf))
                continue
            write(_row_array(segment.memory, slot, column, row, leaf.dtype, leaf.shape), leaf)
            ordinary = column.holds(leaf)
            entries.append((IN_COLUMN,) if ordinary else (IN_ROW, leaf.dtype, leaf.shape))
        return entries


def column_arrays(layout: Layout, n_rows: int, memory: Any, offset_bytes: int) -> list[Array]:
    """Return rows of the columns of a slot that begins there, each of shape ``(n_rows, ...)``."""
    return [
        np.ndarray((n_rows, *c.shape), c.dtype, memory, offset_bytes + c.offset_bytes, c.strides)
        for c in layout.columns
    ]


def _row_array(
    memory: Any, slot: Slot, column: Column, row: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Array:
    offset_bytes = slot.offset_bytes + column.offset_bytes + row * column.row_bytes
    return np.ndarray(shape, dtype, memory, offset_bytes)


class MiniBatch(list):  # type: ignore[type-arg]  # examples are whatever the dataset returns
    """A mini-batch: a list of examples whose arrays are views of a slot of shared memory.

    It is an ordinary list. The slot returns to the pool when its last view is garbage-collected,
    so a mini-batch, or any array of it, stays valid as long as it is kept.

    Attributes:
        structure: The common structure of all examples, or None.
        columns: For each leaf its values in all examples, an array of shape ``(len(batch), ...)``
            that views the slot; None if they do not lie contiguously.
        skipped: The error of each example of the index list that was left out, in order.
        lock_pages: Gives the function that has the pages of slots locked, until they are; what it
            gives is None once the iterator is gone.
    """

    lock_pages: Callable[[], Callable[[PageLocker], None] | None] | None = None

    def __init__(
        self,
        examples: list[Any],
        structure: Structure | None = None,
        columns: Sequence[Array | None] = (),
        skipped: Sequence[ExampleError] = (),
    ) -> None:
        super().__init__(examples)
        self.structure = structure
        self.columns = columns
        self.skipped = skipped
        self._originals = examples

    def is_untouched(self) -> bool:
        """Return whether the list still holds the same examples in the same order."""
        return len(self) == len(self._originals) and all(map(operator.is_, self, self._originals))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain list: the slot stays here."""
        return list, (list(self),)


class FilledSlot(NamedTuple):
    """A slot with a mini-batch in it; the trainer's end."""

    layout: Layout  # the layout that the readers used
    reports: Sequence[tuple[int, int, Report]]  # (start, stop, report) of every part, in order
    #: What all views of the slot refer to, so it is garbage-collected with the last of them; None
    #: where the layout has no columns.
    root: Array | None
    columns: list[Array]  # as many rows of each as there are examples

    @classmethod
    def of(
        cls,
        layout: Layout,
        segment: Segment | None,
        slot: Slot,
        reports: Sequence[tuple[int, int, Report]],
    ) -> FilledSlot:
        """View a slot of a segment, which is None where the layout has no columns."""
        if segment is None:
            return cls(layout, reports, None, [])
        # NumPy makes this array the base of every view.
        root = np.frombuffer(segment.memory, np.uint8, layout.slot_bytes, slot.offset_bytes)
        n_rows = min(reports[-1][1], layout.n_rows)  # one row may be a whole mini-batch
        return cls(layout, reports, root, column_arrays(layout, n_rows, root, 0))

    @property
    def is_ordinary(self) -> bool:
        """Whether all examples are ordinary, and have arrays."""
        return bool(self.columns) and all(report is None for _, _, report in self.reports)

    def left_out(self) -> list[ExampleError]:
        """Return the errors of the examples that are left out."""
        return [entry for _, entry in self.entries() if isinstance(entry, ExampleError)]

    def entries(self) -> Iterator[tuple[int, ExampleEntry | ExampleError | None]]:
        """Give each row that was reported on, and its entry of the report."""
        for start, stop, report in self.reports:
            yield from zip(range(start, stop), report or itertools.repeat(None), strict=False)

    def leaves(
        self, row: int, entry: ExampleEntry | None
    ) -> tuple[Structure, list[Any], list[bool]]:
        """Return the structure and the leaves of one example, and which of these lie in columns."""
        layout, columns = self.layout, self.columns
        if entry is None:
            entry = (None, [(IN_COLUMN,)] * len(layout.columns))
        structure = layout.structure if entry[0] is None else entry[0]
        leaves: list[Any] = []
        number = 0
        for kind, leaf in zip(leaf_kinds(structure), entry[1], strict=True):
            if leaf[0] == LOOSE:
                leaves.append(leaf[1])
            elif leaf[0] == IN_COLUMN:
                array = columns[number]
                leaves.append(array[row] if kind == "number" or array.ndim > 1 else array[row, ...])
            else:
                column = layout.columns[number]
                array = _row_array(self.root, Slot(0, 0), column, row, leaf[1], leaf[2])
                leaves.append(array[()] if kind == "number" else array)
            number += kind != "loose"
        return structure, leaves, [leaf[0] == IN_COLUMN for leaf in entry[1]]


def view_examples(filled: FilledSlot) -> MiniBatch:
    """Return the mini-batch in a slot as NumPy arrays, of no framework. Copies nothing."""
    if not filled.is_ordinary:
        return _view_mixed(filled)
    layout, columns = filled.layout, filled.columns
    rows = [*map(_rows, columns, layout.kinds)]
    contiguous = _contiguous(layout, columns)
    return MiniBatch(assemble(layout.structure, rows), layout.structure, contiguous)


def _rows(column: Array, kind: str) -> Sequence[Any]:
    if kind == "number" or column.ndim > 1:
        return list(column)
    return [column[i, ...] for i in range(len(column))]  # views of shape (), not scalars


def _contiguous(layout: Layout, columns: Sequence[Array]) -> list[Array | None]:
    return [a if c.is_contiguous else None for a, c in zip(columns, layout.columns, strict=True)]


def _view_mixed(filled: FilledSlot) -> MiniBatch:
    """Return a mini-batch in which some example is not ordinary."""
    layout = filled.layout
    examples: list[Any] = []
    skipped: list[ExampleError] = []
    in_columns = [True] * len(layout.kinds)  # leaves, in all examples so far
    is_common = True  # the layout's structure, in all examples so far
    for row, entry in filled.entries():
        if isinstance(entry, ExampleError):
            skipped.append(entry)
            continue
        structure, leaves, in_column = filled.leaves(row, entry)
        examples.append(unflatten(structure, leaves))
        if structure != layout.structure:
            is_common = False
        else:
            in_columns = [a and b for a, b in zip(in_columns, in_column, strict=True)]
    if skipped or not is_common:
        return MiniBatch(examples, skipped=skipped)
    contiguous = iter(_contiguous(layout, filled.columns))
    per_leaf = [None if kind == "loose" else next(contiguous, None) for kind in layout.kinds]
    kept = [array if is_in else None for array, is_in in zip(per_leaf, in_columns, strict=True)]
    return MiniBatch(examples, layout.structure, kept)
