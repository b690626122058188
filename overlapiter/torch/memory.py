"""How the memory of tensors is pickled and shared: as that of arrays, so it is not copied."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import torch

#: Precedes the name of a type of elements that NumPy lacks: these travel as integers of their size.
RAW = "raw:"


class FacePickler(pickle.Pickler):
    """Pickles a face with the tensors in its dataset as buffers, which are not copied twice."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._memories: dict[tuple[int, int], Any] = {}  # of views, by address and size

    def reducer_override(self, thing: Any) -> Any:
        """Pickle dense tensors of the CPU as arrays, and the rest as it is."""
        if type(thing) is not torch.Tensor or not is_dense(thing):
            return NotImplemented
        if thing.is_conj() or thing.is_neg():
            return NotImplemented
        if thing.is_contiguous():
            with contextlib.suppress(TypeError, RuntimeError):  # NumPy has nothing like it
                return torch.from_numpy, (thing.numpy(),)
        # There may be many views of the same memory: each would be pickled with all of it.
        with contextlib.suppress(TypeError, RuntimeError):
            storage = thing.untyped_storage()
            memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            memory = self._memories.setdefault((storage.data_ptr(), storage.nbytes()), memory)
            place = thing.storage_offset(), thing.size(), thing.stride()
            return view_of, (memory, thing.dtype, *place)
        return NotImplemented


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an array in memory, and nothing besides."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return is_plain and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)


def view_of(memory: Any, dtype: torch.dtype, *place: Any) -> torch.Tensor:
    """Return a tensor that lies at a place of some bytes: with this offset, size and stride."""
    storage: Any = torch.from_numpy(memory).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, *place)


def tensor_of(kind: str, array: Any) -> torch.Tensor:
    """Return an array as the tensor that it was, of the type that its kind has after ``RAW``."""
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, kind.removeprefix(RAW))) if kind.startswith(RAW) else tensor
