"""Access order: which example comes when. Pure: no clock, thread, process or file.

The state machine gives, mini-batch by mini-batch, the indices of Chainer's SerialIterator. It runs
ahead of the trainer, so each index list comes with the state that the trainer has after it.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError

Indices = NDArray[np.intp]
#: Returns the order of an epoch, given the previous order, the position in it, and the epoch.
NextOrder = Callable[[Indices, int, int], Indices]


@runtime_checkable
class EpochSampler(Protocol):
    """An order sampler that knows the order of any epoch, and need not be asked in turn."""

    def of_epoch(self, epoch: int, dataset_size: int) -> Indices:
        """Return the order of ``epoch``, the same one at each call."""


class Course(NamedTuple):
    """How an iterator goes through its dataset."""

    batch_size: int  # examples in a full mini-batch
    repeat: bool  # whether a mini-batch goes on with the next epoch at the end of one
    next_order: NextOrder | None  # called once for each end of an epoch; unused without an order
    dataset_size: int  # examples in the dataset, the size of an epoch without an order
    knows_any_epoch: bool = False  # whether ``next_order`` may be called early, and twice


class IterationState(NamedTuple):
    """The state of an iterator after a mini-batch."""

    current_position: int  # examples since the start of the epoch
    epoch: int  # completed sweeps
    is_new_epoch: bool
    order: Indices | None  # None for ascending order


class IndexList(NamedTuple):
    """The indices of one mini-batch."""

    indices: list[int]
    epochs: list[int]  # of each of them
    position: int  # examples before the first one, over all epochs


def epoch_size(state: IterationState, dataset_size: int) -> int:
    """Return the number of examples in the epoch of ``state``."""
    return dataset_size if state.order is None else len(state.order)


def advance(state: IterationState, course: Course) -> tuple[IterationState, IndexList | None]:
    """Take the next mini-batch, from the state after the previous one.

    Returns:
        The new state and the index list; with ``repeat=False``, after the first epoch, the
        unchanged state and None.

    Raises:
        ValueError: The epoch is empty though ``repeat`` is set, or a new order has another length.
        OptionError: A new order holds an index that is no example of the dataset.
    """
    if not course.repeat and state.epoch > 0:
        return state, None
    size = epoch_size(state, course.dataset_size)
    if course.repeat and size == 0:
        raise ValueError("Epoch size must be positive for an iterator that repeats.")

    position, epoch, order = state.current_position, state.epoch, state.order
    indices: list[int] = []
    epochs: list[int] = []
    wanted = course.batch_size

    def take(stop: int) -> None:
        indices.extend(range(position, stop) if order is None else order[position:stop].tolist())
        epochs.extend([epoch] * (stop - position))

    is_new_epoch = False
    while position + wanted >= size:
        take(size)
        wanted -= size - position
        order = _following(order, position, epoch + 1, course)
        epoch, position, is_new_epoch = epoch + 1, 0, True
        if not course.repeat:
            wanted = 0
            break
    take(position + wanted)

    new_state = IterationState(position + wanted, epoch, is_new_epoch, order)
    first_position = state.epoch * size + state.current_position
    return new_state, IndexList(indices, epochs, first_position)


def _following(order: Indices | None, position: int, epoch: int, course: Course) -> Indices | None:
    if order is None or course.next_order is None:
        return order
    following = course.next_order(order, position, epoch)
    if len(following) != len(order):
        raise ValueError("The size of order does not match the size of the previous order.")
    return checked_order(following, course.dataset_size)


def checked_order(order: Indices, dataset_size: int) -> Indices:
    """Return ``order`` as an index array, or raise OptionError if the dataset lacks an index.

    Negative indices count from the end, as in any sequence.
    """
    order = np.asarray(order)
    if order.size == 0:
        return order.astype(np.intp)
    if order.ndim != 1 or order.dtype.kind not in "iu":
        raise OptionError(
            "order_sampler",
            f"returned an array of shape {order.shape} and dtype {order.dtype}; "
            f"return a 1-dimensional array of integers",
        )
    low, high = int(order.min()), int(order.max())
    if low < -dataset_size or high >= dataset_size:
        bad = high if high >= dataset_size else low
        raise OptionError(
            "order_sampler",
            f"returned index {bad}, but the dataset has {dataset_size} examples; "
            f"return indices from 0 to {dataset_size - 1}",
        )
    return order


class Step(NamedTuple):
    """A step of an iterator."""

    state: IterationState  # to which the mini-batch leads
    index_list: IndexList | None  # None at the end, or where the order sampler raised an error
    error: Exception | None = None


class RunAhead:
    """Generates steps ahead of the trainer, who is at ``state``; see :func:`advance`.

    It calls ``next_order`` when a step into an epoch is generated; earlier, and twice, where
    its course ``knows_any_epoch``.
    """

    def __init__(self, state: IterationState, course: Course) -> None:
        self._taken = state
        self._course = course
        self.steps: collections.deque[Step] = collections.deque()
        self._orders: dict[int, Indices | None] = {}
        #: Whether the pipeline is to be told of an order; the face sets it to False when it has.
        self.has_new_orders = True
        self._enter(state)

    def _enter(self, state: IterationState) -> None:
        self._entered = state
        self._orders = {e: order for e, order in self._orders.items() if e >= self._taken.epoch}
        self._orders[state.epoch] = state.order
        self.has_new_orders = True

    def take(self) -> Step:
        """Remove and return the next step."""
        self._taken = self.steps[0].state
        return self.steps.popleft()

    def extend(
        self, n_needed: int, n_wanted: int, *, may_cross_epoch: bool, end: float | None = None
    ) -> None:
        """Generate steps until ``n_wanted`` are ahead.

        Beyond the ``n_needed`` now it goes no further than the epoch after the trainer's, so that
        an order sampler is not called long before its epoch, if it ``may_cross_epoch`` at all.
        Beyond ``end``, the number of epochs that are expected, it goes once the trainer is there.
        """
        while len(self.steps) < n_wanted:
            if self.steps and self.steps[-1].index_list is None:  # the end
                break
            head = self.steps[-1].state if self.steps else self._taken
            size = epoch_size(head, self._course.dataset_size)
            if self._is_at(end, head) and not self._is_at(end, self._taken):
                break
            if head.current_position + self._course.batch_size >= size:  # asks for the next order
                is_far = len(self.steps) >= n_needed and head.epoch > self._taken.epoch
                if is_far or not may_cross_epoch:
                    break
            try:
                step = Step(*advance(head, self._course))
            except Exception as error:  # raised when its mini-batch is due
                step = Step(head, None, error)
            self.steps.append(step)
            if step.state.epoch > head.epoch:
                self._enter(step.state)

    def _is_at(self, end: float | None, state: IterationState) -> bool:
        size = epoch_size(state, self._course.dataset_size)
        position = state.epoch * size + state.current_position
        return end is not None and position >= end * size - 0.5  # of a rounded product

    def known_orders(self) -> dict[int, Indices | None]:
        """Return the known orders by epoch, from the trainer's on; None for ascending order."""
        epoch, order = self._entered.epoch + 1, self._entered.order
        if self._course.knows_any_epoch and self._course.repeat and epoch not in self._orders:
            # What fails here fails again when the epoch is due, and is raised then.
            with contextlib.suppress(Exception):
                position = epoch_size(self._entered, self._course.dataset_size)
                self._orders[epoch] = _following(order, position, epoch, self._course)
        return dict(self._orders)


def seeded_order(seed: int, epoch: int, size: int) -> Indices:
    """Return the shuffled order of one epoch, a function of ``(seed, epoch, size)`` alone.

    Any epoch is computed without those before it.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(size)
