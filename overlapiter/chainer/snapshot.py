"""Snapshots: the state of an iterator, in the form in which Chainer's iterators save theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from overlapiter.errors import OptionError
from overlapiter.order import IterationState, checked_order, epoch_size


def exchange(
    serializer: Any,
    state: IterationState,
    previous_epoch_detail: float,
    batch_size: int,
    dataset_size: int,
) -> tuple[IterationState, float]:
    """Save or load the state, whichever the serializer does; the arguments stay as they are.

    Args:
        serializer: Called with a key and the current value; returns the value to go on with, or
            None for the current one.
        state: The current state.
        previous_epoch_detail: The current one; -1 for none.
        batch_size: To guess ``previous_epoch_detail`` where a snapshot lacks it.
        dataset_size: Examples in the dataset.

    Returns:
        The state and the ``previous_epoch_detail`` to go on with.

    Raises:
        KeyError: The snapshot lacks a key.
        OptionError: Its order does not fit the dataset.
    """
    position = int(_exchange(serializer, "current_position", state.current_position))
    epoch = int(_exchange(serializer, "epoch", state.epoch))
    is_new_epoch = bool(_exchange(serializer, "is_new_epoch", state.is_new_epoch))
    order = _exchange_order(serializer, state.order)
    if order is not None:
        order = checked_order(order, dataset_size)
    new_state = IterationState(position, epoch, is_new_epoch, order)
    if not 0 <= position <= epoch_size(new_state, dataset_size):
        raise OptionError(
            "current_position",
            f"the snapshot stands at example {position} of an epoch, but the dataset has "
            f"{dataset_size}; resume with the dataset that it was taken with",
        )
    try:
        previous = float(_exchange(serializer, "previous_epoch_detail", previous_epoch_detail))
    except KeyError:  # a snapshot of an older Chainer
        size = epoch_size(new_state, dataset_size)
        if epoch + position / size <= 0:
            return new_state, -1.0
        return new_state, max(epoch + (position - batch_size) / size, 0.0)
    return new_state, previous


def _exchange(serializer: Any, key: str, value: Any) -> Any:
    answer = serializer(key, value)
    return value if answer is None else answer


def _exchange_order(serializer: Any, order: Any) -> Any:
    if order is None:
        return None
    kept = np.array(order)  # some serializers load in place
    try:
        return np.asarray(_exchange(serializer, "order", kept))
    except KeyError:
        return np.asarray(_exchange(serializer, "_order", kept))  # of MultithreadIterator


def is_same(one: IterationState, other: IterationState) -> bool:
    """Return whether two states are equal."""
    if one[:3] != other[:3]:
        return False
    if one.order is None or other.order is None:
        return one.order is other.order
    return np.array_equal(one.order, other.order)
