"""The server's halves of the algorithms."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .optimizers import Optimizing, ServerOptimizer, State, Vector
from .workerside import EMPTY, optimizer_part


class ServerSide:
    """The server's half of an algorithm: the weights, which workers may ask for at any time.

    Args:
        n_workers: The number of workers.
        n_state: Length of the persistent state at the end of all vectors.

    Attributes:
        weights: The centre, changed in place.
        learning_rate: Of its optimizer, if it has one; a schedule sets it.
        n_updates: How often the centre was changed.
    """

    learning_rate = 0.0

    def __init__(self, n_workers: int, n_state: int) -> None:
        self.weights: Vector = EMPTY
        self.n_updates = 0
        self._n_workers = n_workers
        self._n_state = n_state

    def begin(self, weights: Vector) -> None:
        """Take the initial weights; copies them."""
        self.weights = np.array(weights, np.float32)

    def apply(self, message: Vector, rank: int) -> dict[int, Vector]:
        """Apply a message.

        Returns:
            The replies that are due now, by rank; views of :attr:`weights` or of a buffer that the
            next call changes, so copy or send them before. In synchronous mode there is none until
            the quorum is there, and then one for each worker that waits.
        """
        return self._apply(message, rank) if len(message) else {rank: self.weights}

    def _apply(self, message: Vector, rank: int) -> dict[int, Vector]:
        raise NotImplementedError

    def set_workers(self, _n: int) -> dict[int, Vector]:
        """Return no replies: no worker waits for another one."""
        return {}

    def forget(self, rank: int) -> None:
        """Do nothing: no message waits."""

    def _split(self, vector: Vector) -> tuple[Vector, Vector]:
        """Return the weights and the persistent state in a vector."""
        n = len(vector) - self._n_state
        return vector[:n], vector[n:]

    def _pull_state(self, message: Vector) -> None:
        """Move the persistent state towards that of one of the workers."""
        centre, there = self._split(self.weights)[1], self._split(message)[1]
        centre += (there - centre) / np.float32(self._n_workers)

    def state(self) -> State:
        """Return a copy of the weights and of what else is kept."""
        return {"weights": self.weights.copy(), "n_updates": self.n_updates}

    def load_state(self, state: Mapping[str, NDArray[np.float32] | int | float]) -> None:
        """Go on from what :meth:`state` returned."""
        self.weights = np.array(state["weights"], np.float32)
        self.n_updates = int(state["n_updates"])


class DownpourServer(Optimizing, ServerSide):
    """Applies each gradient by its optimizer as it comes, and replies with the new weights."""

    def __init__(self, optimizer: ServerOptimizer, n_workers: int, n_state: int) -> None:
        super().__init__(n_workers, n_state)
        self._optimizer = optimizer

    def _apply(self, message: Vector, rank: int) -> dict[int, Vector]:
        self._update(message)
        self._pull_state(message)
        return {rank: self.weights}

    def _update(self, message: Vector) -> None:
        self._optimizer.update(self._split(self.weights)[0], self._split(message)[0])
        self.n_updates += 1

    def state(self) -> State:
        """Return a copy of the weights and of the optimizer's state."""
        state: State = {f"optimizer.{k}": v for k, v in self._optimizer.state().items()}
        return {**super().state(), **state}

    def load_state(self, state: Mapping[str, NDArray[np.float32] | int | float]) -> None:
        """Go on from what :meth:`state` returned."""
        super().load_state(state)
        self._optimizer.load_state(optimizer_part(state))


class SynchronousServer(DownpourServer):
    """Waits for a quorum of the workers and applies the mean of their gradients.

    A message that comes after its quorum belongs to the next mean, so no gradient is lost. The mean
    is taken in the order of the ranks, whatever the order of arrival. Messages that still wait are
    not part of :meth:`state`: take it at the end of an epoch, after ``set_workers(0)``.

    Args:
        quorum: The share of the workers that is enough, above 0 and at most 1.
    """

    def __init__(
        self, optimizer: ServerOptimizer, n_workers: int, n_state: int, quorum: float
    ) -> None:
        super().__init__(optimizer, n_workers, n_state)
        self._quorum = quorum
        self._n_present = n_workers
        self._waiting: dict[int, Vector] = {}

    def _apply(self, message: Vector, rank: int) -> dict[int, Vector]:
        self._waiting[rank] = message.copy()
        return self._due()

    def set_workers(self, n: int) -> dict[int, Vector]:
        """Say how many workers take part now; return the replies that are due."""
        self._n_present = n
        return self._due()

    def forget(self, rank: int) -> None:
        """Drop the waiting message of a worker that has died."""
        self._waiting.pop(rank, None)

    def _due(self) -> dict[int, Vector]:
        """Apply the mean if the quorum is there."""
        # Less than 1e-6 of a worker is the rounding of the share.
        needed = max(1, math.ceil(self._quorum * self._n_present - 1e-6))
        if len(self._waiting) < needed:
            return {}
        ranks = sorted(self._waiting)
        mean = self._waiting[ranks[0]]
        for rank in ranks[1:]:
            mean += self._waiting[rank]
        mean /= np.float32(len(ranks))
        self._update(mean)
        self._split(self.weights)[1][:] = self._split(mean)[1]
        self._waiting.clear()
        return dict.fromkeys(ranks, self.weights)


class EasgdServer(ServerSide):
    """Moves the centre towards each worker that reports, and replies by how much.

    alpha stays what it was at the start when workers leave: both halves must use the same.
    """

    def __init__(self, alpha: float, n_workers: int, n_state: int) -> None:
        super().__init__(n_workers, n_state)
        self._alpha = np.float32(alpha)

    def _apply(self, message: Vector, rank: int) -> dict[int, Vector]:
        force = self._alpha * (message - self.weights)
        self.weights += force
        self.n_updates += 1
        return {rank: force}


class GemServer(ServerSide):
    """Adds what the workers send, since they have scaled it for the centre that they asked for."""

    def _apply(self, message: Vector, rank: int) -> dict[int, Vector]:
        centre, there = self._split(self.weights)[0], self._split(message)[0]
        centre += there
        self._pull_state(message)
        self.n_updates += 1
        return {rank: EMPTY}
