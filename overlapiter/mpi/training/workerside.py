"""The workers' halves of the algorithms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .optimizers import Optimizing, ServerOptimizer, State, Vector

EMPTY: Vector = np.empty(0, np.float32)
EMPTY.flags.writeable = False
_TINY = np.finfo(np.float32).tiny
#: The momentum of GEM, and what keeps its divisor from being 0, as published.
_MU, _EPSILON = np.float32(0.9), np.float32(1e-12)


class WorkerSide(Optimizing):
    """A worker's half of an algorithm: weights, and steps of its own.

    The messages that it returns are valid until its next call.

    Args:
        optimizer: Makes the local steps.
        sync_every: So many of them lie between two messages.
        n_state: Length of the persistent state at the end of all vectors.

    Attributes:
        weights: Where the next gradient is to be taken; valid until ``step`` or ``receive``.
    """

    #: The vectors that an algorithm keeps besides, each as the attribute of that name.
    _kept: tuple[str, ...] = ()

    def __init__(self, optimizer: ServerOptimizer, sync_every: int, n_state: int) -> None:
        self.weights: Vector = EMPTY
        self._optimizer = optimizer
        self._sync_every = sync_every
        self._n_state = n_state
        self._n_steps = 0  # since the last message

    def begin(self, centre: Vector) -> None:
        """Start from the server's weights, at first and after being away; copies them."""
        self.weights = np.array(centre, np.float32)
        self._n_steps = 0

    def step(self, gradient: Vector) -> Vector | None:
        """Take one local step; return the message that is due, or None.

        Args:
            gradient: Of the mean loss of one mini-batch, at :attr:`weights`; its last ``n_state``
                values are the persistent state as it is after that mini-batch.
        """
        n = len(self.weights) - self._n_state
        self._optimizer.update(self.weights[:n], gradient[:n])
        self.weights[n:] = gradient[n:]
        self._n_steps += 1
        return self.flush() if self._n_steps == self._sync_every else None

    def flush(self) -> Vector | None:
        """Return a message of the steps since the last one, or None if there are none."""
        if not self._n_steps:
            return None
        self._n_steps = 0
        return self._message()

    def _message(self) -> Vector:
        raise NotImplementedError

    def receive(self, reply: Vector) -> Vector | None:
        """Take the reply to the last message; return a further message, or None."""
        raise NotImplementedError

    def refresh(self, centre: Vector) -> None:
        """Go on from the worker's own weights after a pause."""

    def state(self) -> State:
        """Return copies of the weights, of what else the algorithm keeps, and of the optimizer."""
        state: State = {f"optimizer.{k}": v for k, v in self._optimizer.state().items()}
        state |= {name: getattr(self, f"_{name}").copy() for name in self._kept}
        return {**state, "weights": self.weights.copy(), "n_steps": self._n_steps}

    def load_state(self, state: Mapping[str, NDArray[np.float32] | int | float]) -> None:
        """Go on from what :meth:`state` returned."""
        self._optimizer.load_state(optimizer_part(state))
        for name in self._kept:
            setattr(self, f"_{name}", np.array(state[name], np.float32))
        self.weights = np.array(state["weights"], np.float32)
        self._n_steps = int(state["n_steps"])


def optimizer_part(
    state: Mapping[str, NDArray[np.float32] | int | float],
) -> dict[str, NDArray[np.float32] | int | float]:
    """Return what a state has of the optimizer."""
    prefix = "optimizer."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


class DownpourWorker(WorkerSide):
    """Sends gradients, and goes on from the weights that come back.

    Source: Dean et al., "Large scale distributed deep networks", NIPS 2012, algorithm 7.1: the
    worker takes local steps and accumulates their gradients; the message is the sum.
    """

    _kept = ("sum",)

    def begin(self, centre: Vector) -> None:
        """Start from the server's weights; copies them."""
        super().begin(centre)
        self._sum = np.zeros_like(self.weights)

    def step(self, gradient: Vector) -> Vector | None:
        """Take one local step; return the message that is due, or None."""
        if self._sync_every == 1:  # the weights come back before they are needed
            return gradient
        if not self._n_steps:
            self._sum.fill(0)
        n = len(self.weights) - self._n_state
        self._sum[:n] += gradient[:n]
        self._sum[n:] = gradient[n:]
        return super().step(gradient)

    def _message(self) -> Vector:
        return self._sum

    def receive(self, reply: Vector) -> None:
        """Take the server's weights."""
        self.weights[:] = reply

    def refresh(self, centre: Vector) -> None:
        """Take the server's weights after a pause, unless steps from here are still to be sent."""
        if not self._n_steps:
            self.weights[:] = centre


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


class GemWorker(WorkerSide):
    """Sends how far its steps led, scaled by how the centre moves beside the expected momentum.

    A message is due in two parts: it asks for the centre c, and with the reply it finds what to
    send. Source: Hermans and Louppe, arXiv 1805.08469, in the form of Magalhães's report, CERN
    openlab 2018.
    """

    _kept = ("centre", "before", "momentum")

    def __init__(
        self,
        optimizer: ServerOptimizer,
        sync_every: int,
        n_state: int,
        *,
        n_workers: int,
        eta: float,
        kappa: float,
    ) -> None:
        super().__init__(optimizer, sync_every, n_state)
        self._n_workers = n_workers
        self._eta, self._kappa = np.float32(eta), np.float32(kappa)
        self._is_asking = False

    def begin(self, centre: Vector) -> None:
        """Start from the server's weights; copies them."""
        super().begin(centre)
        n = len(self.weights) - self._n_state
        self._is_asking = False
        self._centre = self.weights[:n].copy()
        self._before = self.weights[:n].copy()
        self._momentum = np.zeros_like(self._centre)

    def _message(self) -> Vector:
        self._is_asking = True
        return EMPTY

    def receive(self, reply: Vector) -> Vector | None:
        """Take the centre and return what to add to it; take its acknowledgement after that."""
        if not self._is_asking:
            return None
        self._is_asking = False
        n = len(self.weights) - self._n_state
        moved = self._eta * (self.weights[:n] - self._before)
        self._momentum = _MU * self._momentum + moved
        centre_moved = np.abs(reply[:n] - self._centre)
        room = self._kappa * np.abs(self._momentum) - centre_moved
        with np.errstate(over="ignore"):
            # The smallest number instead of 0, for which the equation is not defined.
            factor = room / np.maximum(np.abs(moved + _EPSILON), _TINY)
        message = np.empty_like(self.weights)
        message[:n] = np.clip(factor, 0, 5) * moved
        message[n:] = self.weights[n:]
        self._centre[:] = reply[:n]
        self.weights[:n] = reply[:n] + message[:n]
        self.weights[n:] = reply[n:] + (message[n:] - reply[n:]) / np.float32(self._n_workers)
        self._before[:] = self.weights[:n]
        return message
