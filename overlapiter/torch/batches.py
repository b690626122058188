"""Mini-batches of tensors that are views of slots: how the trainer sees them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from overlapiter.errors import ExampleError
from overlapiter.faults import FailedBatch
from overlapiter.sharedmem.layout import Array, Layout, Structure, leaf_kinds, unflatten
from overlapiter.sharedmem.slots import (
    IN_COLUMN,
    LOOSE,
    FilledSlot,
)
from overlapiter.torch.collation import Collation
from overlapiter.torch.face import RemoteError
from overlapiter.torch.memory import tensor_of

_ORIGINALS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "number": lambda array: array[()],
    "array": lambda array: array,
    "loose": lambda thing: thing,
}


class Collated(NamedTuple):
    """A mini-batch; false where no example is left."""

    data: Any  # what the user gets
    skipped: Sequence[ExampleError]  # the error of each example that was left out
    n_examples: int  # how many were not

    def __bool__(self) -> bool:
        return self.n_examples > 0


def view_tensors(filled: FilledSlot) -> Collated | FailedBatch:
    """Return what PyTorch's collation makes of the examples; copies nothing of those all alike."""
    if not filled.is_ordinary:
        return _view_mixed(filled)
    tensors = map(_tensor, filled.layout.kinds, filled.columns)
    n_examples = filled.reports[-1][1]
    return Collated(_collated(filled.layout.structure, tensors, list), (), n_examples)


def view_whole(filled: FilledSlot) -> Collated:
    """Return what a ``collate_fn`` has returned, in a file reader, with views in it."""
    skipped, (_, n_indices, report) = filled.left_out(), filled.reports[0]
    written = [entry for entry in report or [None] if not isinstance(entry, ExampleError)]
    if not written:
        return Collated(None, skipped, 0)
    structure, leaves, _ = filled.leaves(0, written[0])
    data = pickle.loads(structure[0], buffers=leaves)  # type: ignore[arg-type]  # it is bytes
    return Collated(data, skipped, n_indices - len(skipped))


def _tensor(kind: str, column: Array) -> torch.Tensor:
    """Return a column as the tensor that its rows collate to."""
    # Rows may have been made wider for larger ones; NumPy takes a single one to be contiguous then.
    column = np.ascontiguousarray(column)
    return tensor_of(kind, np.ndarray(column.shape, column.dtype, column))


def _original(kind: str, leaf: Any) -> Any:
    """Return a leaf of an example as what the dataset gave."""
    if kind in _ORIGINALS:
        return _ORIGINALS[kind](leaf)
    return leaf if isinstance(leaf, torch.Tensor) else _tensor(kind, leaf)


def _collated(structure: Structure, values: Iterator[Any], sequence: type) -> Any:
    """Return what PyTorch collates examples to that have this structure.

    For each leaf there is a tensor, or a list of what PyTorch is to collate: as a ``sequence``,
    list or tuple.
    """
    if isinstance(structure, str):
        value = next(values)
        return Collation()(sequence(value)) if structure == "loose" else value
    kind, keys, children = structure
    inner = tuple if keys is None else list
    parts = [_collated(child, values, inner) for child in children]
    if keys is not None:
        return (dict if kind == "dict" else kind)(zip(keys, parts, strict=True))
    return parts if isinstance(kind, str) else kind(*parts)


def _view_mixed(filled: FilledSlot) -> Collated | FailedBatch:
    """Return a mini-batch in which something is not ordinary."""
    layout, columns = filled.layout, filled.columns
    rows = [each for each in filled.entries() if not isinstance(each[1], ExampleError)]
    skipped = filled.left_out()
    if not rows:  # PyTorch collates no mini-batch of none
        return Collated(None, skipped, 0)
    try:
        if all(_is_regular(layout, entry) for _, entry in rows):
            data = _collate_columns(layout, columns, rows, are_all=not skipped)
        else:
            data = Collation()([_rebuilt(filled, row, entry) for row, entry in rows])
    except Exception as error:  # these examples do not go together
        return FailedBatch(RemoteError.of(error), None)
    return Collated(data, skipped, len(rows))


def _is_regular(layout: Layout, entry: Any) -> bool:
    """Return whether an example has the layout's structure, and its arrays lie in columns."""
    if entry is None:
        return True
    ordinary = [LOOSE if kind == "loose" else IN_COLUMN for kind in layout.kinds]
    return entry[0] is None and [leaf[0] for leaf in entry[1]] == ordinary


def _collate_columns(
    layout: Layout, columns: list[Array], rows: list[tuple[int, Any]], *, are_all: bool
) -> Any:
    """Return the mini-batch of regular examples."""
    numbers = [row for row, _ in rows]
    values: list[Any] = []
    remaining = iter(columns)
    for position, kind in enumerate(layout.kinds):
        if kind == "loose":
            values.append([entry[1][position][1] for _, entry in rows])
        else:
            column = next(remaining)
            values.append(_tensor(kind, column if are_all else column[numbers]))
    return _collated(layout.structure, iter(values), list)


def _rebuilt(filled: FilledSlot, row: int, entry: Any) -> Any:
    """Return an example as the dataset gave it."""
    structure, leaves, _ = filled.leaves(row, entry)
    return unflatten(structure, map(_original, leaf_kinds(structure), leaves))
