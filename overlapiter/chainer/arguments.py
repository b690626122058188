"""What the iterator's arguments come down to: a number of readers, an order sampler."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import chainer

from overlapiter.errors import OptionError
from overlapiter.options import check_count
from overlapiter.order import NextOrder, seeded_order

OrderSampler = Callable[[Any, int], Any]


class DefaultSampler(chainer.iterators.ShuffleOrderSampler):
    """Chainer's sampler, made here rather than given by the user."""


class SeededShuffle:
    """Stands for the order that follows from ``seed``; a sampler could not know the epoch."""

    def __call__(self, current_order: Any, current_position: int) -> Any:
        """Refuse; the iterator computes this order itself."""
        raise NotImplementedError("the order follows from the iterator's seed")


def order_source(sampler: OrderSampler | None, seed: int | None) -> NextOrder | None:
    """Return what gives the order of an epoch; None for ascending order."""
    if sampler is None:
        return None
    if seed is not None and isinstance(sampler, SeededShuffle):
        return lambda order, _position, epoch: seeded_order(seed, epoch, len(order))
    return lambda order, position, _epoch: sampler(order, position)


def count_readers(n_processes: int | None) -> int:
    """Return the number of file readers; None and 0 stand for the cores this process may use."""
    if not n_processes:
        return len(os.sched_getaffinity(0)) or multiprocessing.cpu_count()
    return check_count("n_processes", n_processes)


def choose_sampler(
    shuffle: bool | None, order_sampler: OrderSampler | None, seed: int | None
) -> OrderSampler | None:
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
    if shuffle is False:
        return None
    return DefaultSampler() if seed is None else SeededShuffle()
