"""The iterator's arguments: checks, defaults, and the order sampler that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer
import numpy as np

from overlapiter.errors import OptionError
from overlapiter.node import this_node
from overlapiter.options import check_count
from overlapiter.order import EpochSampler, Indices, NextOrder, seeded_order

OrderSampler = Callable[[Any, int], Any]


class SeededShuffle:
    """The order that follows from the iterator's ``seed``."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_epoch(self, epoch: int, dataset_size: int) -> Indices:
        """Return the order of an epoch."""
        return seeded_order(self._seed, epoch, dataset_size)


def order_source(sampler: OrderSampler | EpochSampler | None, size: int) -> NextOrder | None:
    """Return the function that gives the order of an epoch; None for ascending order."""
    if sampler is None:
        return None
    # Copies: a sampler may shuffle in place what it gets, and what it has returned.
    if isinstance(sampler, EpochSampler):
        of_epoch = sampler.of_epoch
        return lambda _order, _position, epoch: np.array(of_epoch(epoch, size))
    return lambda order, position, _epoch: np.array(sampler(np.array(order), position))


def count_readers(n_processes: int | None) -> int:
    """Return the number of file readers; None and 0 stand for one for each core of this rank."""
    return check_count("n_processes", n_processes or this_node().cores)


def above_0_or_none(option: str, value: float | None, else_words: str) -> float | None:
    """Return an argument; OptionError, with its value and these words, if it is neither."""
    if value is not None and not value > 0:
        raise OptionError(option, f"{value!r} {else_words}; use None")
    return value


def choose_sampler(
    shuffle: bool | None, order_sampler: OrderSampler | None, seed: int | None
) -> OrderSampler | EpochSampler | None:
    """Return the order sampler that the arguments ask for; None for ascending order.

    Raises:
        OptionError: They contradict each other.
    """
    if shuffle is not None and order_sampler is not None:
        raise OptionError(
            "order_sampler",
            "`shuffle` is not `None` and a custom `order_sampler` is set. Please set `shuffle` "
            "to `None` to use the custom order sampler.",
        )
    if order_sampler is not None:
        return order_sampler
    if shuffle is not None and not shuffle:
        return None
    return chainer.iterators.ShuffleOrderSampler() if seed is None else SeededShuffle(seed)


def arguments_of(iterator: Any) -> dict[str, Any]:
    """Return the arguments that make another iterator like this one."""
    sampler = iterator.order_sampler
    has_own_sampler = sampler is not None and sampler is not iterator._made_sampler
    names = (
        "dataset", "batch_size", "repeat", "n_processes", "n_prefetch", "shared_mem",
        "dataset_timeout", "staging", "seed", "bad_examples", "epochs",
    )  # fmt: skip
    return {
        **{name: getattr(iterator, name) for name in names},
        "shuffle": None if has_own_sampler else iterator.shuffle,
        "order_sampler": sampler if has_own_sampler else None,
        "maxtasksperchild": iterator._maxtasksperchild,
    }
