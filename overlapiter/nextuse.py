"""When each example is read next, as far as the orders of the coming epochs are known. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .order import Indices

#: The next use of an example that is not known to be used again.
FAR = 2**62


class _Epoch(NamedTuple):
    """The uses within one epoch.

    Attributes:
        first: For each example the position of its first use, or FAR.
        again: For each place in the order the position at which the same example comes again, or
            FAR; None if none comes twice.
    """

    first: NDArray[np.int64]
    again: NDArray[np.int64] | None


class NextUse:
    """The next use of every example that has not been handed out yet.

    A *position* counts examples over all epochs: ``epoch * epoch_size + place in its order``.

    Args:
        n_examples: Examples in the dataset.

    Attributes:
        position: For each example the position of its next use, or FAR; shape ``(n_examples,)``.
    """

    def __init__(self, n_examples: int) -> None:
        self.position = np.full(n_examples, FAR, np.int64)
        self._n_examples = n_examples
        self._epochs: dict[int, _Epoch] = {}
        self._epoch_size = 0
        self._reached = 0

    def learn(self, epoch: int, order: Indices | None) -> bool:
        """Take note of the order of an epoch, None for ascending; epochs come in ascending order.

        Returns:
            Whether it is news; one that is known already is left.
        """
        if epoch in self._epochs:
            return False
        if order is None:
            order = np.arange(self._n_examples)
        order = np.where(order < 0, order + self._n_examples, order)
        size = self._epoch_size = len(order)
        positions = epoch * size + np.arange(size)
        first = np.full(self._n_examples, FAR, np.int64)
        first[order[::-1]] = positions[::-1]  # of several uses the first one is written last
        self._epochs[epoch] = _Epoch(first, _uses_again(order, positions))
        for old in [e for e in self._epochs if (e + 1) * size <= self._reached]:
            del self._epochs[old]
        is_news = (self.position == FAR) & (first >= self._reached)
        self.position[is_news] = first[is_news]
        return True

    def hand_out(self, position: int, indices: list[int]) -> bool:
        """Take note that the examples from ``position`` on are being staged or read.

        Returns:
            Whether others were passed over, so that the next uses of many have changed.
        """
        has_jumped = position > self._reached
        if has_jumped:
            self._pass_over(position)
        self._reached = max(self._reached, position + len(indices))
        self._take(position, indices)
        return has_jumped

    def _pass_over(self, position: int) -> None:
        """Take note that what comes before ``position`` is not handed out, but has been before."""
        is_over = self.position < position
        self.position[is_over] = FAR
        for epoch in sorted(self._epochs):
            uses, start = self._epochs[epoch], epoch * self._epoch_size
            following = uses.first.copy()
            while uses.again is not None and (is_late := following < position).any():
                following[is_late] = uses.again[following[is_late] - start]
            is_it = is_over & (self.position == FAR) & (following >= position)
            self.position[is_it] = following[is_it]

    def _take(self, position: int, indices: list[int]) -> None:
        if self._is_plain(position, position + len(indices)):
            after = self._epochs.get(position // self._epoch_size + 1)
            self.position[indices] = FAR if after is None else after.first[indices]
            return
        for place, index in enumerate(indices, position):
            self.position[index] = self._after(index, place)

    def _is_plain(self, start: int, stop: int) -> bool:
        """Return whether the next uses of these positions are those of the next epoch."""
        if not self._epoch_size:
            return False
        epoch = start // self._epoch_size
        uses = self._epochs.get(epoch)
        is_within = stop <= (epoch + 1) * self._epoch_size
        return is_within and (uses is None or uses.again is None) and epoch + 2 not in self._epochs

    def _after(self, index: int, position: int) -> int:
        if not self._epoch_size:
            return FAR
        epoch, place = divmod(position, self._epoch_size)
        uses = self._epochs.get(epoch)
        if uses is not None and uses.again is not None and uses.again[place] < FAR:
            return int(uses.again[place])
        while (uses := self._epochs.get(epoch := epoch + 1)) is not None:
            if uses.first[index] < FAR:
                return int(uses.first[index])
        return FAR

    def restart(self) -> None:
        """Forget all orders: the next ones may be of any epoch."""
        self.position.fill(FAR)
        self._epochs.clear()
        self._epoch_size = self._reached = 0


def _uses_again(order: Indices, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if not len(order) or np.bincount(order).max() == 1:
        return None
    by_example = np.argsort(order, kind="stable")
    is_same = np.diff(order[by_example]) == 0
    again = np.full(len(order), FAR, np.int64)
    again[by_example[:-1][is_same]] = positions[by_example[1:][is_same]]
    return again
