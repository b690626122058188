"""When each example is read next, as far as the orders of the coming epochs are known. Pure.

The other ranks of a node share its staging directory and read at the same pace. What they read
follows from their orders; it counts as read once this process has passed that position.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .order import Indices

#: The next use of an example that is not known to be used again.
FAR = 2**62
_NONE = np.empty(0, np.intp)


class Served(NamedTuple):
    """What other nodes read from this one in an epoch."""

    offsets: Indices  # of their reads, in this rank's order at that time; ascending
    examples: Indices  # that they read


class _Epoch(NamedTuple):
    """The uses within one epoch."""

    first: NDArray[np.int64]  # for each example the position of its first use, or FAR
    order: Indices | None  # the examples in order; None if none comes twice
    #: For each of them the position of its next use in this epoch, or FAR; None likewise.
    again: NDArray[np.int64] | None
    #: For each entry of the order a row of what other ranks read meanwhile; None if nothing.
    others: Indices | None
    served: Served | None  # what other nodes read from this one; None if nothing
    local: NDArray[np.int64]  # as ``first``, without what is served


class NextUse:
    """The next use of every example, by this rank or others, that was not handed out yet.

    A *position* counts examples over all epochs: ``epoch * epoch_size + offset in its order``.
    """

    def __init__(self, n_examples: int) -> None:
        #: For each example of the dataset the position of its next use, or FAR.
        self.position = np.full(n_examples, FAR, np.int64)
        self._n_examples = n_examples
        self._epochs: dict[int, _Epoch] = {}
        self._epoch_size = 0
        self._reached = self._passed = 0
        self._counts_served = True

    def learn(
        self,
        epoch: int,
        order: Indices | None,
        others: Indices | None = None,
        served: Served | None = None,
    ) -> bool:
        """Note the order of an epoch, None for ascending; return whether it was unknown.

        Epochs come in ascending order, each with what others read meanwhile, as :class:`_Epoch` has
        it; one that is known keeps its order.
        """
        if epoch in self._epochs:
            return False
        if order is None:
            order = np.arange(self._n_examples)
        order = order.astype(np.intp, copy=False)  # a sampler may give any type of integers
        order = order % self._n_examples  # one may count from the end, or lie beyond it
        size = self._epoch_size = len(order)
        positions = epoch * size + np.arange(size)
        first = np.full(self._n_examples, FAR, np.int64)
        first[order[::-1]] = positions[::-1]  # of several uses the first one is written last
        if others is not None:
            soonest = np.full(self._n_examples, FAR, np.int64)
            soonest[others[::-1].ravel()] = np.repeat(positions[::-1], others.shape[1])
            np.minimum(first, soonest, out=first)
        local, again = first, _uses_again(order, positions)
        first = self._with_served(epoch, local, served)
        kept = None if again is None else order
        self._epochs[epoch] = _Epoch(first, kept, again, others, served, local)
        self._forget_past()
        is_new = (self.position == FAR) & (first >= self._reached)
        self.position[is_new] = first[is_new]
        return True

    def _with_served(
        self, epoch: int, local: NDArray[np.int64], served: Served | None
    ) -> NDArray[np.int64]:
        if served is None or not self._counts_served:
            return local
        first = local.copy()
        np.minimum.at(first, served.examples, epoch * self._epoch_size + served.offsets)
        return first

    def count_served(self, *, is_wanted: bool) -> None:
        """Count what other nodes read from this one as uses, or do not."""
        if is_wanted == self._counts_served:
            return
        self._counts_served = is_wanted
        for epoch, uses in self._epochs.items():
            first = self._with_served(epoch, uses.local, uses.served)
            self._epochs[epoch] = uses._replace(first=first)
        self.position.fill(-1)
        self._skip_to(self._reached)
        for epoch, uses in reversed(self._epochs.items()):  # what other ranks here have yet to read
            if uses.others is not None:
                start = epoch * self._epoch_size
                passed, reached = (max(at - start, 0) for at in (self._passed, self._reached))
                rows = uses.others[passed:reached][::-1]  # of several uses the first is last
                positions = start + passed + np.arange(len(rows))[::-1]
                self.position[rows.ravel()] = np.repeat(positions, rows.shape[1])

    def _forget_past(self) -> None:
        for epoch, uses in list(self._epochs.items()):
            is_alone = uses.others is None and uses.served is None
            end = self._reached if is_alone else min(self._reached, self._passed)
            if (epoch + 1) * self._epoch_size <= end:
                del self._epochs[epoch]

    def hand_out(self, position: int, indices: list[int]) -> bool:
        """Note that the examples from ``position`` on are being staged or read.

        Return whether it skipped positions, which changes the next uses of many examples.
        """
        has_skipped = position > self._reached
        if has_skipped:
            self._skip_to(position)
        self._reached = max(self._reached, position + len(indices))
        self._take(position, indices)
        return has_skipped

    def pass_by(self, position: int) -> tuple[Indices, Indices]:
        """Note that the other ranks have read what they read before ``position``.

        Return the examples whose next use has changed: those that ranks of this node have read, and
        those that other nodes have read from it.
        """
        by_others, served = [_NONE], [_NONE]
        for epoch, uses in self._epochs.items() if position > self._passed else ():
            start = epoch * self._epoch_size
            first, last = max(self._passed - start, 0), max(position - start, 0)
            if uses.others is not None:
                by_others.append(self._pass(epoch, uses.others[first:last].ravel(), position))
            if uses.served is not None and self._counts_served:
                window = slice(*np.searchsorted(uses.served.offsets, (first, last)))
                served.append(self._pass(epoch, uses.served.examples[window], position))
        self._passed = max(self._passed, position)
        if len(by_others) == len(served) == 1:  # this rank is alone
            return _NONE, _NONE
        return np.concatenate(by_others), np.concatenate(served)

    def _pass(self, epoch: int, examples: Indices, position: int) -> Indices:
        """Note that examples were read in an epoch; return those of which that was the next use."""
        passed = examples[self.position[examples] < position]
        self.position[passed] = self._first_after(epoch, passed)
        return passed

    def _first_after(self, epoch: int, examples: Indices) -> NDArray[np.int64]:
        found = np.full(len(examples), FAR, np.int64)
        for later, uses in self._epochs.items():
            if later > epoch:
                np.minimum(found, uses.first[examples], out=found)
        return found

    def _skip_to(self, position: int) -> None:
        """Note that what precedes ``position`` was read earlier: a run resumes amid an epoch."""
        is_over = self.position < position
        self.position[is_over] = FAR
        for epoch in sorted(self._epochs):
            uses, start = self._epochs[epoch], epoch * self._epoch_size
            following = np.where(uses.first < position, FAR, uses.first)
            if uses.order is not None and start < position:  # what was used before may come again
                coming = np.arange(position, start + len(uses.order))
                np.minimum.at(following, uses.order[position - start :], coming)
            is_it = is_over & (self.position == FAR)
            self.position[is_it] = following[is_it]

    def _take(self, position: int, indices: list[int]) -> None:
        while indices and self._epoch_size:  # else no next use is known
            epoch, offset = divmod(position, self._epoch_size)
            here = np.array(indices[: self._epoch_size - offset])
            following = self._first_after(epoch, here)
            uses = self._epochs.get(epoch)
            if uses is not None and uses.again is not None:
                np.minimum(following, uses.again[offset : offset + len(here)], out=following)
            self.position[here] = following  # of several uses the last one is written last
            position, indices = position + len(here), indices[len(here) :]

    def restart(self) -> None:
        """Forget all orders; the next ones may be of any epoch."""
        self.position.fill(FAR)
        self._epochs.clear()
        self._epoch_size = self._reached = self._passed = 0


def _uses_again(order: Indices, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if not len(order) or np.bincount(order).max() == 1:
        return None
    by_example = np.argsort(order, kind="stable")
    is_same = np.diff(order[by_example]) == 0
    again = np.full(len(order), FAR, np.int64)
    again[by_example[:-1][is_same]] = positions[by_example[1:][is_same]]
    return again
