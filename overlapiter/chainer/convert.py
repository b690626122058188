"""The converter: mini-batch to contiguous arrays, without copying them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import chainer
import numpy as np

from overlapiter.sharedmem.slots import MiniBatch

_cuda = chainer.backends.cuda  # CuPy, where it is installed
_CURRENT = 0  # flag of cudaHostRegister: nothing special


@chainer.dataset.converter()  # type: ignore[untyped-decorator]  # Chainer has no types
def concat_examples(batch: Any, device: Any = None, padding: Any = None) -> Any:
    """Concatenate a list of examples into arrays, as ``chainer.dataset.concat_examples`` does.

    For a mini-batch of an :class:`OverlapIterator` whose arrays lie contiguously in shared memory
    these very arrays are returned, without a copy, or sent to the device in one transfer each.
    Such an array stays valid as long as it is referenced. The first mini-batch that goes to a GPU
    has the iterator lock the pages of its slots from then on, so that the processor copies
    nothing and does not wait for the transfer. Chainer's function does the rest: padding of
    unequal shapes, lists that did not come from the iterator, mini-batches whose examples were
    replaced.

    Args:
        batch: The examples.
        device: Where to send the arrays; None leaves them in the host's memory.
        padding: Value to fill up arrays of unequal shapes with.

    Returns:
        An array of shape ``(len(batch), ...)`` for examples that are arrays, a tuple of them for
        tuples, a dict of them for dicts.

    Raises:
        ValueError: The mini-batch is empty, or shapes differ and there is no ``padding``.
    """
    if isinstance(batch, MiniBatch) and batch and batch.columns and batch.is_untouched():
        arrays = _columns(batch)
        if arrays is not None:
            _lock_pages(batch, device)
            return _sent(arrays, device)
    return chainer.dataset.convert.concat_examples_func(batch, device, padding)


#: For `help` and editors, which would show those of Chainer's class of converters.
functools.update_wrapper(concat_examples, concat_examples.base_callable)


def _columns(batch: MiniBatch) -> Any:
    """Return the arrays structured as an example is, or None if Chainer has to concatenate."""
    structure = batch.structure
    if any(column is not None and not column.dtype.isnative for column in batch.columns):
        return None  # Chainer gives the byte order of the machine
    if isinstance(structure, str):
        return batch.columns[0]
    assert structure is not None
    kind, keys, children = structure
    if kind == "list" or not all(isinstance(child, str) for child in children):
        return None
    if kind == "dict" and any(tuple(example) != keys for example in batch):
        return None  # the user has added or removed a key
    arrays = []
    for number, (child, column) in enumerate(zip(children, batch.columns, strict=True)):
        key = number if keys is None else keys[number]
        values = [example[key] for example in batch] if column is None or kind == "dict" else None
        array = column
        if column is None or not _still_views(values, column):
            array = _numbers(child, values)
        if array is None:
            return None
        arrays.append(array)
    return tuple(arrays) if keys is None else dict(zip(keys, arrays, strict=True))


def _still_views(values: Any, column: Any) -> bool:
    """Return whether the values of a key still are the rows of the column."""
    if values is None:
        return True
    start = column.__array_interface__["data"][0]
    step = column.strides[0]
    return all(
        type(value) is np.ndarray
        and value.__array_interface__["data"][0] == start + row * step
        and value.shape == column.shape[1:]
        and value.strides == column.strides[1:]
        and value.dtype == column.dtype
        for row, value in enumerate(values)
    )


def _numbers(kind: str, values: Any) -> Any:
    """Return plain numbers as an array, as Chainer does; None for anything else."""
    types = set(map(type, values))
    if kind != "array" and len(types) == 1 and issubclass(types.pop(), (int, float, np.number)):
        return np.asarray(values)
    return None


def _lock_pages(batch: MiniBatch, device: Any) -> None:
    lock_pages = batch.lock_pages() if batch.lock_pages is not None else None
    if lock_pages is not None and device is not None:
        device = chainer.get_device(device)
        if isinstance(device, chainer.backend.GpuDevice):
            lock_pages(CupyLocker(device.device))


def _sent(arrays: Any, device: Any) -> Any:
    send = chainer.dataset.to_device  # takes tuples, too; gives all back as it is for None
    if isinstance(arrays, dict):
        return {key: send(device, array) for key, array in arrays.items()}
    return send(device, arrays)


class CupyLocker:
    """Locks pages by cudaHostRegister, for a ``cupy.cuda.Device`` and its current stream."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def lock(self, address: int, length_bytes: int) -> None:
        """Lock a range of pages; CuPy's error of CUDA is a RuntimeError."""
        with self._device:
            _cuda.cupy.cuda.runtime.hostRegister(address, length_bytes, _CURRENT)

    def unlock(self, address: int) -> None:
        """Wait for the device, and unlock the pages."""
        with self._device:
            self._device.synchronize()
            _cuda.cupy.cuda.runtime.hostUnregister(address)

    def mark(self) -> Callable[[], bool]:
        """Record an event on the current stream."""
        with self._device:
            event = _cuda.cupy.cuda.Event(block=False, disable_timing=True)
            event.record()
        return lambda: bool(event.done)
