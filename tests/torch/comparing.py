"""Says whether two mini-batches, or two loaders, are the same, types included."""

from __future__ import annotations

import collections.abc
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from tests.torch.conftest import Pair


def difference(one: Any, other: Any, where: str = "") -> str:
    """Return in what two things differ; empty if in nothing."""
    if type(one) is not type(other):
        return f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, torch.Tensor):
        facts = [(t.dtype, t.shape, t.device, t.numel() and t.stride()) for t in (one, other)]
        same = facts[0] == facts[1] and torch.equal(*(t.to(torch.complex128) for t in (one, other)))
        return "" if same else f"{where}: {one} and {other}"
    if isinstance(one, np.ndarray):
        facts = [(a.dtype, a.flags.f_contiguous) for a in (one, other)]
        same = facts[0] == facts[1] and np.array_equal(one, other)
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
    found = difference(one, other)
    assert not found, found


def taken(loader: Any, n_epochs: int = 1) -> list[Any]:
    """Return the mini-batches of some epochs, and the error with which one ended."""
    found: list[Any] = []
    for _ in range(n_epochs):
        iterator = iter(loader)
        while True:
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                found.append((type(error), str(error).split("\n")[0], str(error).split("\n")[-2:]))
    return found


def seed_all(seed: int) -> None:
    """Seed what a dataset draws from where there are no workers."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def assert_alike(pair: Pair, dataset: Any, n_epochs: int = 1, **options: Any) -> list[Any]:
    """Have both load the same; return what they gave."""
    found = []
    for make in pair.each():
        seed_all(11)
        loader = make(dataset, **options)
        found.append((taken(loader, n_epochs), torch.rand(1)))
    assert_same(found[0], found[1])
    return found[1][0]
