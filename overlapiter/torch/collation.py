"""PyTorch's default collation, as its workers do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate


class Collation:
    """What PyTorch's default collation is in this program now; in file readers it is the same."""

    def __init__(self) -> None:
        #: What collates each type: a program may register some.
        self.functions: dict[Any, Callable[..., Any]] = {**collate.default_collate_fn_map}
        if self.functions.get(torch.Tensor) is collate.collate_tensor_fn:
            self.functions[torch.Tensor] = stack

    def __call__(self, examples: Any) -> Any:
        """Return the mini-batch of some examples."""
        return collate.collate(examples, collate_fn_map=self.functions)

    @property
    def is_pytorchs(self) -> bool:
        """Whether the program has registered nothing."""
        modules = {getattr(each, "__module__", "") for each in self.functions.values()}
        return modules <= {collate.__name__, __name__}


def stack(tensors: Any, *, collate_fn_map: Any) -> Any:
    """Stack tensors to one with the type of elements of the first, as into shared memory."""
    first = tensors[0]
    if first.is_nested or first.layout is not torch.strided or first.is_quantized:
        return collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
    sum(each.numel() for each in tensors)  # raises what PyTorch's raises where some are none
    return torch.stack(tensors, 0, out=first.new_empty((len(tensors), *first.size())))
