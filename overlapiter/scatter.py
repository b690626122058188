"""A fresh global shuffle of every epoch over all ranks of a data-parallel job.

All ranks compute the same *global order* of the data set from a seed. Rank ``r`` of ``P`` reads its
entries ``r``, ``r + P``, ``r + 2 P``, …, so after ``t`` examples each, the ranks together have read
exactly its first ``t P`` entries: a mini-batch over all ranks is the same set of examples for every
number of ranks, as long as its size is. The *global position* counts the entries that all ranks
have read in an epoch; any number of ranks can resume from it.

Pure: no communication, clock or I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError
from .options import check_count
from .order import Indices, seeded_order

Remainder = Literal["fill", "drop", "uneven"]
_REMAINDERS = ("fill", "drop", "uneven")
#: The seed of a :class:`ScatterState` whose order is not shuffled.
_UNSHUFFLED = -1
#: Chainer's own iterators do not tell the epoch: how many epochs ahead may have their order.
_SEARCHED_EPOCHS = 1000


class ScatterState(NamedTuple):
    """What a snapshot holds of a scattered order; the same on all ranks."""

    seed: int  # of the order; negative if it is not shuffled
    dataset_size: int  # examples in the dataset
    epoch_size: int  # examples in an epoch of the rank that wrote it
    epoch: int  # completed sweeps
    position: int  # examples that this rank has read in the epoch
    global_position: int  # examples that all ranks have read in the epoch

    @property
    def is_known(self) -> bool:
        """Whether there is one: the iterator has an order of :class:`ScatteredOrder`."""
        return self.dataset_size >= 0


#: The state of an iterator with another sampler's order.
UNKNOWN = ScatterState(-1, -1, -1, -1, -1, -1)


class ScatteredOrder:
    """One rank's part of an order that all ranks share; an order sampler.

    Args:
        rank: The rank.
        size: The number of ranks, at least 1.
        seed: The orders follow from it; from 0 to 2**63 - 1.
        shuffle: Whether each epoch has an order of its own; otherwise all are ascending.
        remainder: What to do where ``size`` does not divide the data set. ``"fill"`` reads fewer
            than ``size`` examples twice in an epoch, those it begins with. ``"drop"`` leaves out
            fewer than ``size``, others in each epoch. ``"uneven"`` gives some ranks one example
            less, which is for evaluation.
        local_ranks: The ranks of this rank's node, itself among them.
        is_seed_drawn: Whether the seed was drawn at random; that of a snapshot then replaces it.

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
        self._neighbours = sorted({*local_ranks} - {rank})
        #: The global order that was computed last, and what it is a function of.
        self._latest: tuple[tuple[int, int, int], Indices] | None = None
        # Of Chainer's own iterator: its dataset, 0 before it asks, and the epoch it asked for last.
        self._dataset_size = self._epoch = 0

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is computed again."""
        return {**vars(self), "_latest": None}

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

    def of_ranks(
        self, epoch: int, dataset_size: int, ranks: Sequence[int], start: int = 0
    ) -> Indices:
        """Return what some ranks read in an epoch.

        ``start`` is the entry of the global order with which the first row begins.

        Returns:
            An array of shape ``(epoch size, ranks)``: a row for each example of this rank's order.
        """
        starts = start + self.size * np.arange(self.length(dataset_size))
        entries = starts[:, np.newaxis] + np.asarray(ranks)
        rows: Indices = self._global_order(epoch, dataset_size)[entries % dataset_size]
        return rows

    def of_neighbours(
        self, orders: Mapping[int, Indices | None], dataset_size: int
    ) -> dict[int, Indices]:
        """Return by epoch :meth:`of_ranks` of the other ranks of this node, if there are any.

        ``orders`` are those of this rank; one that was resumed begins elsewhere than others.
        """
        others: dict[int, Indices] = {}
        for epoch, order in orders.items() if self._neighbours else ():
            start = self._start_of(epoch, order, dataset_size)
            if start is not None:
                others[epoch] = self.of_ranks(epoch, dataset_size, self._neighbours, start)
        return others

    def length(self, n_entries: int) -> int:
        """Return how many of the last ``n_entries`` of the global order this rank reads.

        Those of a whole epoch are as many as the dataset has examples.
        """
        if self.remainder == "fill":
            return -(-n_entries // self.size)
        if self.remainder == "drop":
            return n_entries // self.size
        return len(range(self.rank, n_entries, self.size))

    def readers(
        self, epoch: int, global_position: int, dataset_size: int
    ) -> tuple[Indices, NDArray[np.int64]]:
        """Return who reads each example in an epoch, and when.

        ``global_position`` entries of its order were read before; see :meth:`resume`.

        Returns:
            For each example the first rank that reads it, or -1, and the offset in that rank's
            order at which it does.
        """
        n_left = dataset_size - global_position
        n_read = n_left // self.size * self.size if self.remainder == "drop" else n_left
        first = self.length(dataset_size) - self.length(n_left)
        entries = np.arange(n_read)
        examples = self._global_order(epoch, dataset_size)[global_position:][:n_read]
        ranks = np.full(dataset_size, -1, np.intp)
        offsets = np.zeros(dataset_size, np.int64)
        ranks[examples] = entries % self.size
        offsets[examples] = first + entries // self.size
        return ranks, offsets

    def _global_order(self, epoch: int, dataset_size: int) -> Indices:
        """Return the order of all ranks in an epoch; not to be written to."""
        if not self.shuffle:
            return np.arange(dataset_size)
        key = self.seed, epoch, dataset_size
        if self._latest is None or self._latest[0] != key:
            self._latest = key, self._shuffled(epoch, dataset_size)
        return self._latest[1]

    def _start_of(self, epoch: int, order: Indices | None, dataset_size: int) -> int | None:
        """Return at which entry of the global order one of this rank begins, less the rank.

        None for an empty order, or another sampler's.
        """
        if order is None or not 0 < len(order) == self.length(dataset_size):
            return None
        (found,) = np.nonzero(self._global_order(epoch, dataset_size) == order[0])
        return int(found[0]) - self.rank if len(found) else None

    def _shuffled(self, epoch: int, dataset_size: int) -> Indices:
        return seeded_order(self.seed, epoch, dataset_size)

    def _part_from(
        self, epoch: int, global_position: int, dataset_size: int
    ) -> tuple[int, Indices]:
        """Return the position and the order with which this rank goes on.

        Chainer's iterators have epochs of one length, so the order is as long as that of a whole
        epoch. What it holds before the position has no meaning: other ranks may have read that.
        """
        length = self.length(dataset_size)
        position = length - self.length(dataset_size - global_position)
        if dataset_size and dataset_size < self.size and self.remainder != "fill":
            raise OptionError(
                "remainder",
                f"{dataset_size} examples are too few for {self.size} ranks: some would have none; "
                f"take fewer ranks, or remainder='fill'",
            )
        if not length:
            return 0, np.empty(0, np.intp)
        start = global_position + self.rank - position * self.size
        entries = start + self.size * np.arange(length)
        return position, self._global_order(epoch, dataset_size)[entries % dataset_size]

    # --- snapshots ----------------------------------------------------------------------------

    def state_of(
        self, epoch: int, position: int, order: Indices | None, dataset_size: int
    ) -> ScatterState:
        """Return what to save of an iterator; UNKNOWN if its order is another sampler's."""
        if order is None or len(order) != self.length(dataset_size):
            return UNKNOWN
        global_position = dataset_size
        if len(order):
            start = self._start_of(epoch, order, dataset_size)
            if start is None:
                return UNKNOWN
            reached = (start + position * self.size) % dataset_size
            expected, part = self._part_from(epoch, reached, dataset_size)
            # One that has nothing left may stand before the end: others may have something left.
            if position == expected and np.array_equal(order, part):
                global_position = reached
            elif position < len(order):
                return UNKNOWN
        seed = self.seed if self.shuffle else _UNSHUFFLED
        return ScatterState(seed, dataset_size, len(order), epoch, position, global_position)

    def resume(self, state: ScatterState, dataset_size: int) -> tuple[int, Indices]:
        """Return the position and the order with which this rank goes on from a snapshot.

        Raises:
            OptionError: It is of another dataset, or of another seed.
        """
        if state.dataset_size != dataset_size:
            raise OptionError(
                "scattered",
                f"the snapshot is of a dataset of {state.dataset_size} examples, this one has "
                f"{dataset_size}; resume with the dataset that it was taken with",
            )
        seed = self.seed if self.shuffle else _UNSHUFFLED
        if state.seed != seed and self._is_seed_drawn and state.seed != _UNSHUFFLED:
            self.seed = seed = state.seed
        if state.seed != seed:
            words = "no shuffle" if state.seed == _UNSHUFFLED else f"seed={state.seed}"
            raise OptionError(
                "seed", f"the snapshot was taken with {words}; give scatter_order the same"
            )
        return self._part_from(state.epoch, state.global_position, dataset_size)

    def check_order(self, epoch: int, order: Indices, dataset_size: int) -> None:
        """Check the order of a snapshot without a state, as Chainer's own iterators save them.

        Raises:
            OptionError: It is not this rank's, so what is left of the epoch is not known.
        """
        is_own = np.array_equal(order, self.of_epoch(epoch, dataset_size))
        # A single rank reads what is left of any order.
        if not is_own and (self.size > 1 or len(order) != dataset_size):
            raise OptionError(
                "order",
                f"the snapshot's order of epoch {epoch} is not that of {self!r}. Give "
                f"scatter_order the seed that the snapshot was taken with; one that Chainer's own "
                f"iterator saved is resumed by the same rank of the same number of ranks",
            )

    # --- Chainer's own iterators --------------------------------------------------------------

    def __call__(self, current_order: Indices, current_position: int) -> Indices:
        """Return the order of the next epoch, as Chainer's own iterators ask for it.

        They do not tell the epoch: it is the nearest that has ``current_order``, counted from the
        last call, so a sampler serves one of them.

        Raises:
            OptionError: No epoch has it, so the next one is not known.
        """
        n = len(current_order)
        is_first = current_position == 0 and n == (self._dataset_size or n)
        if is_first and np.array_equal(current_order, np.arange(n)):
            self._dataset_size, self._epoch = n, 0
            return self.of_epoch(0, n)
        candidates = range(self._epoch + _SEARCHED_EPOCHS)
        for epoch in sorted(candidates, key=lambda candidate: abs(candidate - self._epoch)):
            if np.array_equal(current_order, self.of_epoch(epoch, self._dataset_size)):
                self._epoch = epoch + 1
                return self.of_epoch(self._epoch, self._dataset_size)
        raise OptionError(
            "order_sampler",
            f"no epoch of {self!r} has the order of this iterator. One of Chainer's own is resumed "
            f"with the seed of its snapshot, by the same rank of the same number of ranks, has a "
            f"sampler to itself, and is reset() if that was exchanged. Or use "
            f"overlapiter.OverlapIterator",
        )
