"""Says whether two mini-batches are the same, types included."""

from __future__ import annotations

import collections.abc
from typing import Any

import numpy as np
import torch


def difference(one: Any, other: Any, where: str = "") -> str:
    """Return in what two things differ; empty if in nothing."""
    if type(one) is not type(other):
        return f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, torch.Tensor):
        facts = [(t.dtype, t.shape, t.device, t.is_contiguous()) for t in (one, other)]
        same = facts[0] == facts[1] and torch.equal(*(t.to(torch.complex128) for t in (one, other)))
        return "" if same else f"{where}: {one} and {other}"
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and np.array_equal(one, other)
        return "" if same else f"{where}: {one} and {other}"
    if isinstance(one, collections.abc.Mapping):
        if list(one) != list(other):
            return f"{where}: {list(one)} and {list(other)}"
        return next(
            filter(None, (difference(one[k], other[k], f"{where}[{k!r}]") for k in one)), ""
        )
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)}"
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (difference(a, b, f"{where}[{i}]") for i, (a, b) in pairs)), "")
    return "" if one == other else f"{where}: {one!r} and {other!r}"


def assert_same(one: Any, other: Any) -> None:
    """Fail if two things differ."""
    assert difference(one, other) == ""
