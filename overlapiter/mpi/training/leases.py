"""The queue of the training files: pieces of them, leased to workers until they are trained on.

Pure: no clock, thread or I/O. Every example of an epoch is used exactly once: a lease that comes
back, because its worker has died or hangs, goes on where the last gradients that reached the server
ended. Workers that are done with an epoch begin the next one while others end it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Piece(NamedTuple):
    """A range of examples of one file, given by its number in the list."""

    file: int
    start: int
    stop: int

    def __len__(self) -> int:
        """Return how many examples it has."""
        return self.stop - self.start


class Lease(NamedTuple):
    """The right, and the duty, to train on what is left of a piece in an epoch."""

    epoch: int  # from 1
    piece: int
    position: int = 0  # where to begin in the shuffled examples of the piece


def pieces_of(lengths: Sequence[int], piece_examples: int) -> list[Piece]:
    """Cut files of some lengths into pieces of at most so many examples."""
    pieces = []
    for file, length in enumerate(lengths):
        cuts = [*range(0, length, piece_examples), length]
        if piece_examples > 2 and len(cuts) > 2 and cuts[-2] == length - 1:
            cuts[-2] -= 1  # a single example would be a mini-batch of its own
        pieces += [Piece(file, start, stop) for start, stop in itertools.pairwise(cuts)]
    return pieces


def default_piece_examples(n_examples: int, n_workers: int, step_examples: int) -> int:
    """Return a piece size that gives each worker some eight leases in an epoch.

    It is a multiple of the examples between two messages of a worker, ``step_examples``.
    """
    share = n_examples / max(1, n_workers * 8)
    return step_examples * max(1, math.ceil(share / step_examples))


def order_of(n: int, *seed: int) -> NDArray[np.intp]:
    """Return a permutation of ``n`` things that follows from some numbers."""
    return np.random.default_rng(seed).permutation(n)


class LeaseQueue:
    """Which examples of the current epochs are done, and whose the others are.

    If pieces are shuffled, their order follows from the seed and the epoch.

    Attributes:
        held: The leases of each worker, with how far each is done.
    """

    def __init__(
        self, pieces: Sequence[Piece], n_epochs: int, seed: int, *, shuffle: bool = True
    ) -> None:
        self._pieces = pieces
        self._n_epochs = n_epochs
        self._seed = seed
        self._shuffle = shuffle
        self._waiting: deque[Lease] = deque()
        self._n_open: Counter[int] = Counter()  # leases of each epoch, waiting or held
        self._begun = 0  # epochs whose leases were put into the queue
        self.held: dict[int, list[Lease]] = {}
        self._is_closed = False

    def take(self, worker: int, current: int) -> Lease | None:
        """Give a worker a lease of the current epoch or the next one; None if there is none.

        The current epoch is the earliest that is not done.
        """
        self._fill(1, current)
        if self._is_closed or not self._waiting:
            return None
        lease = self._waiting.popleft()
        self.held.setdefault(worker, []).append(lease)
        return lease

    def can_spare(self, n: int, current: int) -> bool:
        """Return whether there are more than ``n`` leases to take."""
        self._fill(n + 1, current)
        return len(self._waiting) > n

    def _fill(self, n: int, current: int) -> None:
        """Begin the next epoch if fewer than ``n`` leases are left of those that have begun."""
        last = 0 if self._is_closed else min(current + 1, self._n_epochs)
        if len(self._waiting) < n and self._begun < last:
            self._begun += 1
            numbers = range(len(self._pieces))
            order = order_of(len(numbers), self._seed, self._begun).tolist()
            self._waiting += [Lease(self._begun, i) for i in (order if self._shuffle else numbers)]
            self._n_open[self._begun] = len(numbers)

    def advance(self, worker: int, epoch: int, piece: int, position: int) -> None:
        """Note that the gradients of a lease up to a position have reached the server."""
        leases = self.held[worker]
        place = next(i for i, each in enumerate(leases) if each[:2] == (epoch, piece))
        if position >= len(self._pieces[piece]):
            del leases[place]
            self._n_open[epoch] -= 1
        else:
            leases[place] = Lease(epoch, piece, position)

    def give_back(self, worker: int) -> list[Lease]:
        """Put the leases of a worker back to the front of the queue; return them."""
        leases = self.held.pop(worker, [])
        self._waiting.extendleft(reversed(leases))
        return leases

    def close(self) -> None:
        """Give out no lease any more; those that are left stay, for the checkpoint."""
        self._is_closed = True

    def has_open(self, epoch: int) -> bool:
        """Return whether examples of an epoch are left, with a worker or in the queue."""
        return epoch > self._begun or self._n_open[epoch] > 0

    def state(self) -> dict[str, object]:
        """Return what :meth:`restore` needs: the leases that workers hold come first again."""
        held = [lease for worker in sorted(self.held) for lease in self.held[worker]]
        held.sort(key=lambda lease: lease.epoch)
        return {"begun": self._begun, "waiting": [list(each) for each in [*held, *self._waiting]]}

    def restore(self, state: dict[str, object]) -> None:
        """Go on from a state."""
        self._begun = int(state["begun"])  # type: ignore[call-overload]  # as JSON has it
        waiting: list[list[int]] = state["waiting"]  # type: ignore[assignment]  # as above
        self._waiting = deque(Lease(*each) for each in waiting)
        self._n_open = Counter(each.epoch for each in self._waiting)
