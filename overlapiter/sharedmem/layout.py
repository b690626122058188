"""How a mini-batch lies in its slot. Pure: nothing here allocates or shares memory.

An example is a tree of tuples, lists and dicts with leaves. The *structure* of an example is that
tree with the kind of each leaf:

* ``"array"``: a plain ``numpy.ndarray``; it lies in a column of the slot,
* ``"number"``: a NumPy scalar; it lies in a column, too,
* ``"loose"``: anything else, and a container that holds nothing else; it is pickled and sent beside
  the slot.

A *column* holds one array leaf of every example: row ``p`` that of example ``p`` of the
mini-batch, so the column is the contiguous ``(batch_size, ...)`` array of the converter. The first
example that is read determines the layout. An array of another shape or dtype lies in its row if
it fits; if not, it is pickled, and the next layout gets wider rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .images import DecodedImage

Array = NDArray[Any]

#: The kind of a leaf, or ``(kind, keys, children)`` of a container, with keys for a dict.
Structure = str | tuple[Any, ...]
#: Returns the structure of an example and its leaves. All but loose leaves have dtype and shape.
Flatten = Callable[[object], tuple[Structure, list[Any]]]

_ALIGNMENT_BYTES = 64
#: Wider rows may make a slot so many times larger at once, or so large.
_WIDEN_TIMES = 8
_WIDEN_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Column:
    """Where one array leaf of every example lies."""

    dtype: np.dtype[Any]  # element type of an ordinary row, that of the first example
    shape: tuple[int, ...]  # shape of an ordinary row
    row_bytes: int  # distance between rows, at least the size of an ordinary row
    offset_bytes: int  # start of row 0 in the slot

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one row to the next, and between the elements of an ordinary one."""
        strides = [self.dtype.itemsize]
        for length in reversed(self.shape[1:]):
            strides.append(strides[-1] * length)
        return (self.row_bytes, *reversed(strides)) if self.shape else (self.row_bytes,)

    @functools.cached_property
    def is_contiguous(self) -> bool:
        """Whether ordinary rows follow each other without a gap."""
        return self.row_bytes == size_bytes(self.dtype, self.shape)

    def holds(self, leaf: Array) -> bool:
        """Return whether ``leaf`` is an ordinary row."""
        return leaf.shape == self.shape and leaf.dtype == self.dtype

    def fits(self, leaf: Array) -> bool:
        """Return whether ``leaf`` can lie in a row, with its elements aligned."""
        start_bytes = self.offset_bytes | self.row_bytes
        return leaf.nbytes <= self.row_bytes and start_bytes % leaf.dtype.alignment == 0


@dataclasses.dataclass(frozen=True)
class Layout:
    """How mini-batches lie in slots of one size."""

    structure: Structure  # the structure of an ordinary example
    columns: tuple[Column, ...]  # one column for each array or number leaf, in order
    n_rows: int  # examples in a slot
    slot_bytes: int  # size of a slot; 0 without columns

    @functools.cached_property
    def kinds(self) -> list[str]:
        """The kind of each leaf of an ordinary example, in order."""
        return leaf_kinds(self.structure)

    @property
    def widest_row_bytes(self) -> int:
        """How wide a row may become at once: a single outlier is not to make all slots huge."""
        return max(_WIDEN_TIMES * self.slot_bytes, _WIDEN_BYTES) // self.n_rows

    def lengthened(self, n_rows: int) -> Layout:
        """Return a layout of the same rows for mini-batches of ``n_rows`` examples."""
        return _arrange(self.structure, self.columns, [c.row_bytes for c in self.columns], n_rows)

    def widened(self, wanted_row_bytes: Sequence[int]) -> Layout:
        """Return a layout whose rows hold at least ``wanted_row_bytes``, column by column."""
        rows = [
            column.row_bytes if wanted <= column.row_bytes else _aligned(wanted)
            for column, wanted in zip(self.columns, wanted_row_bytes, strict=True)
        ]
        return _arrange(self.structure, self.columns, rows, self.n_rows)


#: Of mini-batches whose examples were all left out before there was any other.
NO_LAYOUT = Layout("loose", (), 1, 0)


def layout_of(example: object, n_rows: int, take_apart: Flatten | None = None) -> Layout:
    """Return the layout for mini-batches of ``n_rows`` examples like this one.

    ``take_apart`` replaces :func:`flatten` where a framework has more than arrays.
    """
    structure, leaves = (take_apart or flatten)(example)
    arrays = [
        leaf for kind, leaf in zip(leaf_kinds(structure), leaves, strict=True) if kind != "loose"
    ]
    rows = [size_bytes(array.dtype, array.shape) for array in arrays]
    return _arrange(structure, arrays, rows, n_rows)


def _arrange(
    structure: Structure,
    rows_like: Sequence[Column | Array],
    rows: Iterable[int],
    n_rows: int,
) -> Layout:
    """Lay out columns of rows that have dtype and shape of others, and these sizes in bytes."""
    columns = []
    end_bytes = 0
    for like, row_bytes in zip(rows_like, rows, strict=True):
        columns.append(Column(like.dtype, like.shape, row_bytes, end_bytes))
        end_bytes = _aligned(end_bytes + row_bytes * n_rows)
    # Slots of empty arrays are needed, too: later arrays may make them wider.
    slot_bytes = max(end_bytes, _ALIGNMENT_BYTES) if columns else 0
    return Layout(structure, tuple(columns), n_rows, slot_bytes)


def size_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the bytes of a contiguous array."""
    return dtype.itemsize * math.prod(shape)


def _aligned(number_bytes: int) -> int:
    return -(-number_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


# --- trees ------------------------------------------------------------------------------------


def flatten(example: object) -> tuple[Structure, list[Any]]:
    """Return the structure of an example and its leaves, in order."""
    leaves: list[Any] = []
    return _flatten(example, leaves), leaves


def _flatten(node: Any, leaves: list[Any]) -> Structure:
    kind = type(node)
    if kind is tuple or kind is list or kind is dict:
        n_before, is_dict = len(leaves), kind is dict
        values = node.values() if is_dict else node
        children = tuple([_flatten(child, leaves) for child in values])
        if children.count("loose") < len(children):
            return (kind.__name__, tuple(node) if is_dict else None, children)
        del leaves[n_before:]  # nothing of it lies in a column: it is pickled as a whole
    leaves.append(node)
    if kind is np.ndarray:
        return "loose" if node.dtype.hasobject else "array"
    if kind is DecodedImage:
        return "array"
    if isinstance(node, np.generic) and node.dtype.kind in "biufc":
        return "number"
    return "loose"


def leaf_kinds(structure: Structure) -> list[str]:
    """Return the kind of each leaf, in order."""
    if isinstance(structure, str):
        return [structure]
    return [kind for child in structure[2] for kind in leaf_kinds(child)]


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the example with this structure and these leaves; inverse of :func:`flatten`."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Any) -> Any:
    if isinstance(structure, str):
        return next(leaves)
    kind, keys, children = structure
    values = [_unflatten(child, leaves) for child in children]
    if keys is not None:
        return (dict if kind == "dict" else kind)(zip(keys, values, strict=True))
    if isinstance(kind, str):
        return tuple(values) if kind == "tuple" else values
    return kind(*values)  # a named tuple


def assemble(structure: Structure, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return examples of one structure; ``rows`` holds for each leaf its value in every example.

    It makes flat examples, the usual ones, without a Python loop over leaves.
    """
    if isinstance(structure, str):
        return list(rows[0])
    kind, keys, children = structure
    if children and all(isinstance(child, str) for child in children):
        if kind == "tuple":
            return list(zip(*rows, strict=True))
        if kind == "dict":
            return [dict(zip(keys, values, strict=True)) for values in zip(*rows, strict=False)]
    return [unflatten(structure, leaves) for leaves in zip(*rows, strict=True)]
