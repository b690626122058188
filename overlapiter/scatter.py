"""A fresh global shuffle of every epoch over all ranks of a data-parallel job.

All ranks compute the same order of the whole data set from a seed, and each reads its part of it:
rank ``r`` of ``P`` the examples at the places ``r``, ``r + P``, ``r + 2 P``, … So after ``t``
examples each, all ranks together have read exactly the first ``t P`` of that order, whatever the
size of the mini-batches, and a mini-batch over all ranks is the same set of examples for all
numbers of ranks whose mini-batches have the same size together. Where a run stands in an epoch is
one number, the *global position*: how many examples of the order all ranks have read. From it any
number of ranks goes on.

Pure: no communication, clock or I/O.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from .errors import OptionError, OrderWarning
from .options import check_count
from .order import Indices, seeded_order

Remainder = Literal["fill", "drop", "uneven"]
_REMAINDERS = ("fill", "drop", "uneven")
#: The seed of a :class:`Landmark` where the order is not shuffled.
_UNSHUFFLED = -1
#: How many epochs are gone through to find out which one an order is of, at least and at most,
#: and in between as many as together have this number of examples, which takes some 20 s.
_SEARCHED_EPOCHS = 1000, 10_000
_SEARCHED_EXAMPLES = 1_000_000_000


class Landmark(NamedTuple):
    """Where a run stands, for any rank of any number of ranks; what a snapshot holds of it.

    Attributes:
        seed: Seed of the order; negative if it is not shuffled.
        dataset_size: Examples in the dataset.
        epoch_size: Examples in an epoch of the rank that wrote it.
        epoch: Completed sweeps.
        position: Examples that this rank has read of the epoch.
        global_position: Examples of the epoch's order that all ranks have read.
    """

    seed: int
    dataset_size: int
    epoch_size: int
    epoch: int
    position: int
    global_position: int

    @property
    def is_set(self) -> bool:
        """Whether it says anything."""
        return self.dataset_size >= 0


#: Says nothing: the order is not one of :class:`ScatteredOrder`.
NOWHERE = Landmark(-1, -1, -1, -1, -1, -1)


class ScatteredOrder:
    """The part of one rank of an order that all ranks share; an order sampler.

    With :class:`overlapiter.OverlapIterator` it is a function of the epoch. Chainer's own
    iterators do not tell a sampler the epoch, so it finds that out from the order that they hand
    back: one object serves one of their iterators.

    Args:
        rank: The rank.
        size: The number of ranks, at least 1.
        seed: The orders follow from it; from 0 to 2**63 - 1.
        shuffle: Whether each epoch has an order of its own; otherwise all are ascending.
        remainder: What becomes of a data set that cannot be divided by ``size``. ``"fill"``:
            fewer than ``size`` examples are read twice in an epoch, those it begins with.
            ``"drop"``: fewer than ``size`` are not read, others in each epoch. ``"uneven"``: some
            ranks read one example less, which is for evaluation.
        local_ranks: The ranks that share this one's node, itself among them.
        is_seed_drawn: Whether the seed is nobody's choice, so that one in a snapshot counts more.

    Raises:
        OptionError: An argument cannot work.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        seed: int,
        *,
        shuffle: bool = True,
        remainder: Remainder = "fill",
        local_ranks: Sequence[int] = (),
        is_seed_drawn: bool = False,
    ) -> None:
        self.size = check_count("size", size)
        self.rank = check_count("rank", rank, minimum=0)
        if rank >= size:
            raise OptionError("rank", f"there is no rank {rank} among {size}")
        self.seed = check_count("seed", seed, minimum=0)
        if seed >= 2**63:
            raise OptionError("seed", f"{seed} does not fit into a snapshot; take one below 2**63")
        if remainder not in _REMAINDERS:
            raise OptionError("remainder", f"{remainder!r} is none of {', '.join(_REMAINDERS)}")
        self.shuffle = shuffle
        self.remainder: Remainder = remainder
        self._is_seed_drawn = is_seed_drawn
        self._neighbours = np.array(sorted({*local_ranks} - {rank}), np.intp)
        self._dataset_size: int | None = None
        self._epoch = 0  # that Chainer's own iterators were given last
        self._forget()

    def _forget(self) -> None:
        """Have nothing at hand that can be computed again."""
        self._given: Indices | None = None
        self._whole: tuple[tuple[int, int, int], Indices] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave out the arrays."""
        return {**vars(self), "_given": None, "_whole": None}

    def __repr__(self) -> str:
        """Show the arguments."""
        return (
            f"ScatteredOrder({self.rank}, {self.size}, {self.seed}, shuffle={self.shuffle}, "
            f"remainder={self.remainder!r})"
        )

    # --- the order ----------------------------------------------------------------------------

    def of_epoch(self, epoch: int, dataset_size: int) -> Indices:
        """Return the order of this rank in an epoch; costs tens of nanoseconds per example."""
        return self._part_from(epoch, 0, dataset_size)[1]

    def of_neighbours(self, epoch: int, dataset_size: int) -> Indices | None:
        """Return what the other ranks of this node read in an epoch.

        Returns:
            An array of shape ``(epoch size, neighbours)``: a row for each example of this rank's
            order. None if this rank is alone on its node.
        """
        if not len(self._neighbours) or not dataset_size:
            return None
        starts = self.size * np.arange(self._length(dataset_size))
        places = starts[:, np.newaxis] + self._neighbours
        rows: Indices = self._order(epoch, dataset_size)[places % dataset_size]
        return rows

    def _order(self, epoch: int, dataset_size: int) -> Indices:
        """Return the order of all ranks in an epoch; not to be written to."""
        if not self.shuffle:
            return np.arange(dataset_size)
        key = self.seed, epoch, dataset_size
        whole = self._whole
        if whole is None or whole[0] != key:
            whole = self._whole = key, seeded_order(*key)
        return whole[1]

    def _length(self, n_examples: int) -> int:
        """Return how many of ``n_examples`` in a row this rank reads."""
        if self.remainder == "fill":
            return -(-n_examples // self.size)
        if self.remainder == "drop":
            return n_examples // self.size
        return len(range(self.rank, n_examples, self.size))

    def _part_from(
        self, epoch: int, global_position: int, dataset_size: int
    ) -> tuple[int, Indices]:
        """Return the position and the order with which this rank goes on.

        An epoch is of the same length wherever it is begun amid, as Chainer's iterators have it,
        so the places of the order may be shifted: what it says of the examples that have been read
        is of no importance.
        """
        length = self._length(dataset_size)
        position = length - self._length(dataset_size - global_position)
        if dataset_size and dataset_size < self.size and self.remainder != "fill":
            raise OptionError(
                "remainder",
                f"{dataset_size} examples are too few for {self.size} ranks: some would have none; "
                f"take fewer ranks, or remainder='fill'",
            )
        if not length:
            return 0, np.empty(0, np.intp)
        start = global_position + self.rank - position * self.size
        places = start + self.size * np.arange(length)
        return position, self._order(epoch, dataset_size)[places % dataset_size]

    # --- snapshots ----------------------------------------------------------------------------

    def landmark(
        self, epoch: int, position: int, order: Indices | None, dataset_size: int
    ) -> Landmark:
        """Return where an iterator stands that has this order; NOWHERE if it is another's order."""
        if order is None or len(order) != self._length(dataset_size):
            return NOWHERE
        global_position = dataset_size
        if position < len(order):
            whole = self._order(epoch, dataset_size)
            place = _place_of(order[position], whole)
            global_position = (place - self.rank) % dataset_size
            expected, part = self._part_from(epoch, global_position, dataset_size)
            if position != expected or not np.array_equal(order, part):
                return NOWHERE
        seed = self.seed if self.shuffle else _UNSHUFFLED
        return Landmark(seed, dataset_size, len(order), epoch, position, global_position)

    def resume(self, landmark: Landmark, dataset_size: int) -> tuple[int, Indices]:
        """Return the position and the order with which this rank goes on from a landmark.

        Raises:
            OptionError: It is of another dataset, or of another seed.
        """
        if landmark.dataset_size != dataset_size:
            raise OptionError(
                "scattered",
                f"the snapshot is of a dataset of {landmark.dataset_size} examples, this one has "
                f"{dataset_size}; resume with the dataset that it was taken with",
            )
        seed = self.seed if self.shuffle else _UNSHUFFLED
        if landmark.seed != seed and self._is_seed_drawn and landmark.seed != _UNSHUFFLED:
            self.seed = seed = landmark.seed
        if landmark.seed != seed:
            words = "no shuffle" if landmark.seed == _UNSHUFFLED else f"seed={landmark.seed}"
            raise OptionError(
                "seed", f"the snapshot was taken with {words}; give scatter_order the same"
            )
        return self._part_from(landmark.epoch, landmark.global_position, dataset_size)

    def adopt(
        self, epoch: int, position: int, order: Indices, dataset_size: int
    ) -> tuple[int, Indices]:
        """Return the position and the order to go on with from a snapshot without a landmark.

        Chainer's own iterators save none; the order may be that of any rank, of any number.

        Raises:
            OptionError: It does not follow from the seed.
        """
        if len(order) and dataset_size:
            whole = self._order(epoch, dataset_size)
            places = [_place_of(index, whole) for index in order[:2]]
            stride = (places[-1] - places[0]) % dataset_size
            taken = (places[0] + stride * np.arange(len(order))) % dataset_size
            is_regular = 0 <= places[0] < max(stride, self.size) and places[-1] >= 0
            if is_regular and np.array_equal(order, whole[taken]):
                return self._part_from(epoch, min(position * stride, dataset_size), dataset_size)
        if self.size == 1 and len(order) == self._length(dataset_size):
            return position, order  # nobody else reads anything of this epoch
        raise OptionError(
            "order",
            f"the snapshot's order of epoch {epoch} does not follow from {self!r}, so it is not "
            f"known what is left of that epoch; give scatter_order the seed that the snapshot was "
            f"taken with, or load it into an iterator with the sampler that it was taken with",
        )

    # --- Chainer's own iterators --------------------------------------------------------------

    def __call__(self, current_order: Indices, current_position: int) -> Indices:
        """Return the order after ``current_order``, as Chainer's iterators ask for it.

        Raises:
            OptionError: ``current_order`` is not of any epoch, so the next epoch is not known.
        """
        order = np.asarray(current_order)
        if self._is_start(order, current_position):
            self._dataset_size, self._epoch = len(order), 0
        elif self._dataset_size is None:
            raise OptionError("order_sampler", "it was exchanged; call reset() of the iterator")
        else:
            self._epoch = self._epoch_of(order, self._dataset_size) + 1
        self._given = self.of_epoch(self._epoch, self._dataset_size)
        return self._given

    def _is_start(self, order: Indices, position: int) -> bool:
        """Return whether an iterator asks for the first order, as its constructor does."""
        is_own = order is self._given  # two examples may well be in ascending order
        return position == 0 and not is_own and np.array_equal(order, np.arange(len(order)))

    def _epoch_of(self, order: Indices, dataset_size: int) -> int:
        """Find out which epoch an order is of, that of the last call first."""
        n_epochs = _SEARCHED_EXAMPLES // max(dataset_size, 1)
        n_epochs = int(np.clip(n_epochs, *_SEARCHED_EPOCHS))
        for epoch in _nearest(self._epoch, n_epochs if self.shuffle else 1):
            whole = self._order(epoch, dataset_size)
            first = _place_of(order[0], whole) if len(order) else 0
            places = (first + self.size * np.arange(len(order))) % max(dataset_size, 1)
            if first < 0 or not np.array_equal(order, whole[places]):
                continue
            if first != self.rank and first < self.size:
                warnings.warn(
                    f"rank {self.rank} has read the part of rank {first} in epoch {epoch}: it was "
                    f"resumed from the snapshot of that rank. Take a snapshot on each rank, or "
                    f"use overlapiter.OverlapIterator, which finds its own part",
                    OrderWarning,
                    stacklevel=4,
                )
            return epoch
        raise OptionError(
            "order_sampler",
            f"the iterator's order is of none of {n_epochs:,} epochs of {self!r}, so it is not "
            f"known which epoch comes next. If the iterator was resumed, give scatter_order the "
            f"seed and the number of ranks that the snapshot was taken with, or use "
            f"overlapiter.OverlapIterator; if several iterators share it, give each its own",
        )


def _place_of(index: int, whole: Indices) -> int:
    """Return the place of an example in an order; -1 if it is not there."""
    found = np.flatnonzero(whole == index)
    return int(found[0]) if len(found) else -1


def _nearest(epoch: int, n_epochs: int) -> Iterator[int]:
    """Yield epochs, the nearest to ``epoch`` first."""
    for distance in range(n_epochs):
        yield epoch + distance
        if 0 < distance <= epoch:
            yield epoch - distance
