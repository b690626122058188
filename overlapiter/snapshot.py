"""Snapshots: saving and loading the state of an iterator, as Chainer's iterators do."""

from __future__ import annotations

from typing import Any

import numpy as np

from overlapiter.errors import OptionError
from overlapiter.order import IterationState, checked_order, epoch_size
from overlapiter.scatter import UNKNOWN, ScatteredOrder, ScatterState


def exchange(
    serializer: Any,
    state: IterationState,
    previous_epoch_detail: float,
    batch_size: int,
    dataset_size: int,
    sampler: object = None,
) -> tuple[IterationState, float]:
    """Save or load the state, whichever the serializer does. Changes no argument.

    Args:
        serializer: Called with a key and the current value; returns the value of the snapshot, or
            None for the current one.
        state: The current state.
        previous_epoch_detail: The current one; -1 for none. A snapshot may lack it: a guess then.
        batch_size: Examples in a mini-batch.
        dataset_size: Examples in the dataset.
        sampler: The order sampler; with a ScatteredOrder any number of ranks can resume.

    Returns:
        The state and the ``previous_epoch_detail`` to go on with.

    Raises:
        KeyError: The snapshot lacks a key.
        OptionError: Its order does not fit the dataset, or the sampler.
    """
    new_state = IterationState(
        int(_exchange(serializer, "current_position", state.current_position)),
        int(_exchange(serializer, "epoch", state.epoch)),
        bool(_exchange(serializer, "is_new_epoch", state.is_new_epoch)),
        state.order,
    )
    if isinstance(sampler, ScatteredOrder) and state.order is not None:
        new_state = _exchange_scattered(serializer, sampler, state, new_state, dataset_size)
    elif state.order is not None:
        try:
            order = _exchange_order(serializer, state.order)
        except ValueError as error:  # it cannot be copied over the current one
            raise OptionError(
                "order",
                f"that of the snapshot does not have the {len(state.order)} examples that an epoch "
                f"has here ({error}); resume with the dataset and the order_sampler of then",
            ) from error
        new_state = new_state._replace(order=checked_order(order, dataset_size))
    position, size = new_state.current_position, epoch_size(new_state, dataset_size)
    if not 0 <= position <= size:
        raise OptionError(
            "current_position",
            f"the snapshot stands at example {position} of an epoch, but the dataset has "
            f"{dataset_size}; resume with the dataset that it was taken with",
        )
    try:
        previous = float(_exchange(serializer, "previous_epoch_detail", previous_epoch_detail))
    except KeyError:  # a snapshot of an older Chainer
        if not new_state.epoch and not position:
            return new_state, -1.0
        return new_state, max(new_state.epoch + (position - batch_size) / max(size, 1), 0.0)
    return new_state, previous


def _exchange(serializer: Any, key: str, value: Any) -> Any:
    answer = serializer(key, value)
    return value if answer is None else answer


def _exchange_order(serializer: Any, order: Any) -> Any:
    kept = np.array(order)  # some serializers load in place
    try:
        return np.asarray(_exchange(serializer, "order", kept))
    except KeyError:
        return np.asarray(_exchange(serializer, "_order", kept))  # of MultithreadIterator


def _exchange_scattered(
    serializer: Any,
    sampler: ScatteredOrder,
    state: IterationState,
    loaded: IterationState,
    dataset_size: int,
) -> IterationState:
    """Save or load an order that all ranks share, of which each resumes its own part.

    ``loaded`` is ``state`` with the position and the epoch that the serializer has returned.
    """
    own = sampler.state_of(state.epoch, state.current_position, state.order, dataset_size)
    try:
        kept = np.array(own, np.int64)  # some serializers load in place
        saved = ScatterState(*map(int, _exchange(serializer, "scattered", kept)))
    except KeyError:
        saved = UNKNOWN
    # A loading that is not strict returns the current value of a key that the snapshot lacks.
    if saved.is_known and (saved.epoch, saved.position) == (loaded.epoch, loaded.current_position):
        if saved.epoch_size == own.epoch_size or not own.is_known:
            _exchange_order(serializer, state.order)  # for other iterators
        if saved == own:
            return loaded
        position, order = sampler.resume(saved, dataset_size)
        return loaded._replace(current_position=position, order=order)
    try:
        order = _exchange_order(serializer, state.order)
    except ValueError:  # the snapshot is of another number of ranks
        order = np.asarray(serializer("order", None))
    loaded = loaded._replace(order=checked_order(order, dataset_size))
    if not is_same(loaded, state):
        sampler.check_order(loaded.epoch, order, dataset_size)
    return loaded


def is_same(one: IterationState, other: IterationState) -> bool:
    """Return whether two states are equal."""
    if one[:3] != other[:3]:
        return False
    if one.order is None or other.order is None:
        return one.order is other.order
    return np.array_equal(one.order, other.order)
