"""How the memory of tensors is pickled: out of band as that of arrays, so it is not copied."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import torch

#: By address and size, the memory of views that are pickled together.
Memories = dict[tuple[int, int], Any]


class FacePickler(pickle.Pickler):
    """Pickles a face; many views of the same memory in its dataset are sent with it once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._memories: Memories = {}

    def reducer_override(self, thing: Any) -> Any:
        """Pickle dense tensors of the CPU as arrays, and the rest as it is."""
        return reduced(thing, self._memories) if type(thing) is torch.Tensor else NotImplemented


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an array in memory, and nothing besides."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return is_plain and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)


def reduced(tensor: torch.Tensor, memories: Memories | None) -> Any:
    """Return what a pickler's ``reducer_override`` returns for a tensor.

    One that is part of a larger memory is sent with all of that, if there are ``memories`` to
    find it again; otherwise it is copied first. Its strides stay.
    """
    if not is_dense(tensor):
        return NotImplemented
    tensor = tensor.resolve_conj().resolve_neg()
    with contextlib.suppress(TypeError, RuntimeError):  # NumPy has nothing like it
        if tensor.is_contiguous():
            return torch.from_numpy, (tensor.numpy(),)
    with contextlib.suppress(TypeError, RuntimeError):
        storage = tensor.untyped_storage()
        if memories is None and storage.nbytes() > tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
            storage = tensor.untyped_storage()
        memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        if memories is not None:
            memory = memories.setdefault((storage.data_ptr(), storage.nbytes()), memory)
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        return view_of, (memory, tensor.dtype, *place)
    return NotImplemented


def view_of(memory: Any, dtype: torch.dtype, *place: Any) -> torch.Tensor:
    """Return a tensor that lies at a place of some bytes: with this offset, size and stride."""
    storage: Any = torch.from_numpy(memory).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, *place)
