"""How workers and server train one model together: Downpour, EASGD and GEM. Pure.

Each algorithm is two halves that exchange vectors. The worker takes local steps, and every
``sync_every`` of them it has a message for the server; the server applies it, or in synchronous
mode the mean of those of several workers, to its weights, the centre, and has a reply for it::

    message = worker.step(gradient)   # None until a message is due
    reply = server.apply(message)
    worker.receive(reply)             # then worker.weights is where to go on

All vectors are flat, float32, of one length: first the weights, then the persistent state, such as
the statistics of BatchNormalization, which has ``n_state`` values. Where gradients travel, the
persistent state of a worker takes that place. The server moves its own towards it by one n-th of
the difference, n being the number of workers; in synchronous mode it takes the mean. In EASGD the
persistent state is pulled as the weights are.

An empty vector as message asks for the centre, and as reply says that the message has been applied.
"""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import numpy as np

from overlapiter.objective import EMPTY, Vector

from .optimizers import ServerOptimizer, State
from .settings import Settings

T = TypeVar("T")

_TINY = np.finfo(np.float32).tiny
#: The momentum of GEM, and what keeps its divisor from being 0, as published.
_MU, _EPSILON = np.float32(0.9), np.float32(1e-12)


class _Half:
    """What the halves on both sides have: weights and an optimizer, which some do not need.

    Args:
        settings: The numbers of the algorithm.
        n_workers: The number of all workers at the start.
        n_state: The number of values of persistent state at the end of all vectors.
        means: Of the optimizer. A half that makes no steps has nothing compiled by ``"numpy"``.
    """

    #: The attributes that a checkpoint has beside the optimizer.
    _kept: tuple[str, ...] = ("weights",)

    def __init__(self, settings: Settings, n_workers: int, n_state: int, means: str) -> None:
        name, rate = settings.optimizer, settings.learning_rate
        self.optimizer = ServerOptimizer(name, rate, momentum=settings.momentum, means=means)
        self._settings = settings
        self._n_workers = n_workers
        self._n_state = n_state
        self.weights: Vector = EMPTY

    def begin(self, weights: Vector) -> None:
        """Start from weights; copies them."""
        self.weights = np.array(weights, np.float32)

    def _split(self, vector: Vector) -> tuple[Vector, Vector]:
        """Return the weights and the persistent state in a vector."""
        n = len(vector) - self._n_state
        return vector[:n], vector[n:]

    def state(self) -> State:
        """Return a copy of what :meth:`load_state` needs to go on exactly."""
        state: State = {f"optimizer.{k}": v for k, v in self.optimizer.state().items()}
        return state | {name: copy.copy(getattr(self, name)) for name in self._kept}

    def load_state(self, state: State) -> None:
        """Go on from what :meth:`state` returned."""
        prefix = "optimizer."
        self.optimizer.load_state(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )
        for name in self._kept:
            setattr(self, name, copy.copy(state[name]))


class WorkerSide(_Half):
    """A worker's half. The messages that it returns are valid until its next call.

    Attributes:
        weights: Where the next gradient is to be taken; valid until ``step`` or ``receive``.
        n_steps: Since the last message.
    """

    _kept: tuple[str, ...] = ("weights", "n_steps")

    def begin(self, weights: Vector) -> None:
        """Start from the server's weights, at first and after being away; copies them."""
        super().begin(weights)
        self.n_steps = 0

    def step(self, gradient: Vector) -> Vector | None:
        """Take one local step; return the message that is due, or None.

        Args:
            gradient: Of the mean loss of one mini-batch, at :attr:`weights`; its last ``n_state``
                values are the persistent state as it is after that mini-batch.
        """
        weights, state = self._split(self.weights)
        change, state_after = self._split(gradient)
        self.optimizer.update(weights, change)
        state[:] = state_after
        self.n_steps += 1
        return self.flush() if self.n_steps == self._settings.sync_every else None

    def flush(self) -> Vector | None:
        """Return a message of the steps since the last one, or None if there are none."""
        if not self.n_steps:
            return None
        self.n_steps = 0
        return self._message()

    def _message(self) -> Vector:
        raise NotImplementedError

    def receive(self, reply: Vector) -> Vector | None:
        """Take the reply to the last message; return a further message, or None."""
        raise NotImplementedError

    def refresh(self, centre: Vector) -> None:
        """Go on from the worker's own weights after a pause."""


class ServerSide(_Half):
    """The server's half: the weights, which workers may ask for at any time.

    Attributes:
        weights: The centre, changed in place.
        n_updates: How often the centre was changed.
    """

    _kept = ("weights", "n_updates")
    n_updates = 0

    def apply(self, message: Vector) -> Vector:
        """Apply a message and return the reply; the next call may change that."""
        if not len(message):
            return self.weights
        self.n_updates += 1
        return self._apply(message)

    def _apply(self, message: Vector) -> Vector:
        raise NotImplementedError

    def _pull_state(self, message: Vector) -> None:
        """Move the persistent state towards that of a worker, or take the mean of several."""
        centre, there = self._split(self.weights)[1], self._split(message)[1]
        if self._settings.synchronous:
            centre[:] = there
        else:
            centre += (there - centre) / np.float32(self._n_workers)


# --- Downpour -----------------------------------------------------------------------------------


class DownpourWorker(WorkerSide):
    """Sends gradients, and goes on from the weights that come back.

    Source: Dean et al., "Large scale distributed deep networks", NIPS 2012, algorithm 7.1: the
    worker takes local steps and accumulates their gradients; the message is the sum.
    """

    _kept = (*WorkerSide._kept, "sum")

    def begin(self, weights: Vector) -> None:
        """Start from the server's weights; copies them."""
        super().begin(weights)
        self.sum = np.zeros_like(self.weights)

    def step(self, gradient: Vector) -> Vector | None:
        """Take one local step; return the message that is due, or None."""
        if not self._settings.has_local_steps:  # the weights come back before they are needed
            return gradient
        if not self.n_steps:
            self.sum.fill(0)
        total, state = self._split(self.sum)
        change, state_after = self._split(gradient)
        total += change
        state[:] = state_after
        return super().step(gradient)

    def _message(self) -> Vector:
        return self.sum

    def receive(self, reply: Vector) -> None:
        """Take the server's weights."""
        self.weights[:] = reply

    def refresh(self, centre: Vector) -> None:
        """Take the server's weights after a pause, unless steps from here are still to be sent."""
        if not self.n_steps:
            self.weights[:] = centre


class DownpourServer(ServerSide):
    """Applies each gradient by its optimizer as it comes, and replies with the new weights.

    In synchronous mode it is given the means of what workers send.
    """

    def _apply(self, message: Vector) -> Vector:
        self.optimizer.update(self._split(self.weights)[0], self._split(message)[0])
        self._pull_state(message)
        return self.weights


def take_quorum(waiting: dict[int, T], share: float, n_workers: int) -> list[T]:
    """Empty what waits, by the ranks of workers, once it is that of a share of them; return it.

    It is in the order of the ranks, whatever the order of arrival; nothing before. What comes after
    its quorum waits for the next one, so no gradient is lost.
    """
    # Less than 1e-6 of a worker is the rounding of the share.
    if len(waiting) < max(1, math.ceil(share * n_workers - 1e-6)):
        return []
    ready = [waiting[rank] for rank in sorted(waiting)]
    waiting.clear()
    return ready


def mean_of(vectors: list[Vector]) -> Vector:
    """Return the mean of vectors, the first of which is changed to it."""
    mean, *others = vectors
    for other in others:
        mean += other
    mean /= np.float32(len(vectors))
    return mean


# --- EASGD --------------------------------------------------------------------------------------


class EasgdWorker(WorkerSide):
    """Explores on its own, tied to the centre by an elastic force.

    The reply is alpha (x - c), which the server has added to its centre, so both updates are made
    with the same old x and c. Source: Zhang, Choromanska and LeCun, arXiv 1412.6651, algorithm 1.
    """

    def _message(self) -> Vector:
        return self.weights

    def receive(self, reply: Vector) -> None:
        """Give way by as much as the centre has moved towards here."""
        self.weights -= reply


class EasgdServer(ServerSide):
    """Moves the centre towards each worker that reports, and replies by how much.

    alpha stays what it was at the start when workers leave: both halves must use the same.
    """

    def _apply(self, message: Vector) -> Vector:
        alpha = np.float32(self._settings.beta / self._n_workers)
        force = alpha * (message - self.weights)
        self.weights += force
        return force


# --- GEM ----------------------------------------------------------------------------------------


class GemWorker(WorkerSide):
    """Sends how far its steps led, scaled by how the centre moves beside the expected momentum.

    A message is due in two parts: it asks for the centre c, and with the reply it finds what to
    send. Source: Hermans and Louppe, arXiv 1805.08469, in the form of Magalhães's report, CERN
    openlab 2018.
    """

    _kept = (*WorkerSide._kept, "centre", "before", "momentum")
    _is_asking = False

    def begin(self, weights: Vector) -> None:
        """Start from the server's weights; copies them."""
        super().begin(weights)
        self._is_asking = False
        self.centre = self._split(self.weights)[0].copy()
        self.before = self.centre.copy()
        self.momentum = np.zeros_like(self.centre)

    def _message(self) -> Vector:
        self._is_asking = True
        return EMPTY

    def receive(self, reply: Vector) -> Vector | None:
        """Take the centre and return what to add to it; take its acknowledgement after that."""
        if not self._is_asking:
            return None
        self._is_asking = False
        weights, state = self._split(self.weights)
        centre, state_there = self._split(reply)
        message = np.empty_like(self.weights)
        step, message_state = self._split(message)
        moved = np.float32(self._settings.gem_eta) * (weights - self.before)
        self.momentum = _MU * self.momentum + moved
        kappa = np.float32(self._settings.gem_kappa)
        room = kappa * np.abs(self.momentum) - np.abs(centre - self.centre)
        with np.errstate(over="ignore"):
            # The smallest number instead of 0, for which the equation is not defined.
            factor = room / np.maximum(np.abs(moved + _EPSILON), _TINY)
        step[:] = np.clip(factor, 0, 5) * moved
        message_state[:] = state
        self.centre[:] = centre
        weights[:] = centre + step
        state[:] = state_there + (message_state - state_there) / np.float32(self._n_workers)
        self.before[:] = weights
        return message


class GemServer(ServerSide):
    """Adds what the workers send, since they have scaled it for the centre that they asked for."""

    def _apply(self, message: Vector) -> Vector:
        centre, there = self._split(self.weights)[0], self._split(message)[0]
        centre += there
        self._pull_state(message)
        return EMPTY


# --- which one ----------------------------------------------------------------------------------


def make_worker_side(settings: Settings, n_workers: int, n_state: int = 0) -> WorkerSide:
    """Return a worker's half of the algorithm; see :class:`_Half` for the arguments.

    The optimizer makes the local steps, if there are any.
    """
    means = "auto" if settings.has_local_steps else "numpy"
    kinds = {"downpour": DownpourWorker, "easgd": EasgdWorker, "gem": GemWorker}
    return kinds[settings.algorithm](settings, n_workers, n_state, means)


def make_server_side(settings: Settings, n_workers: int, n_state: int = 0) -> ServerSide:
    """Return the server's half of the algorithm; see :class:`_Half` for the arguments.

    The optimizer applies the gradients of Downpour; the others need none.
    """
    means = "auto" if settings.algorithm == "downpour" else "numpy"
    kinds = {"downpour": DownpourServer, "easgd": EasgdServer, "gem": GemServer}
    return kinds[settings.algorithm](settings, n_workers, n_state, means)
