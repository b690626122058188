"""How workers and server train one model together: Downpour, EASGD and GEM. Pure.

Each algorithm is two halves that exchange vectors. The worker takes local steps, and every
``sync_every`` of them it has a message for the server; the server applies it to its weights, the
centre, and has a reply for it, or in synchronous mode later one for each worker that waits::

    message = worker.step(gradient)         # None until a message is due
    replies = server.apply(message, rank)   # {rank: reply}
    worker.receive(replies[rank])           # then worker.weights is where to go on

All vectors are flat, float32, of one length: first the weights, then the persistent state, such as
the statistics of BatchNormalization, which has ``n_state`` values. Where gradients travel, the
persistent state of a worker takes that place. The server moves its own towards it by one n-th of
the difference, n being the number of workers; in synchronous mode it takes the mean. In EASGD the
persistent state is pulled as the weights are.

An empty vector as message asks for the centre, and as reply says that the message has been applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from overlapiter.errors import OptionError

from .optimizers import ServerOptimizer
from .serverside import DownpourServer, EasgdServer, GemServer, ServerSide, SynchronousServer
from .workerside import DownpourWorker, EasgdWorker, GemWorker, WorkerSide

#: The settings of each, with their defaults.
ALGORITHMS: dict[str, dict[str, float]] = {
    "downpour": {"quorum": 1.0},
    "easgd": {"beta": 0.9},
    "gem": {"eta": 0.01, "mu": 0.9, "kappa": 2.0, "epsilon": 1e-12},
}


def make_worker_side(
    name: str,
    n_workers: int,
    sync_every: int,
    optimizer: ServerOptimizer,
    *,
    n_state: int = 0,
    **settings: float,
) -> WorkerSide:
    """Return a worker's half of an algorithm.

    Args:
        name: ``"downpour"``, ``"easgd"`` or ``"gem"``.
        n_workers: The number of all workers at the start.
        sync_every: The number of local steps between two messages.
        optimizer: Makes the local steps, which Downpour does only where ``sync_every`` is above 1;
            the worker owns it.
        n_state: The number of values of persistent state.
        settings: ``beta`` of EASGD; ``eta``, ``mu``, ``kappa`` and ``epsilon`` of GEM.

    Raises:
        OptionError: There is no such algorithm or setting, or a number is out of its range.
    """
    chosen = _checked(name, n_workers, settings)
    if sync_every < 1:
        raise OptionError("sync_every", f"{sync_every} mini-batches; give at least 1")
    if name == "downpour":
        return DownpourWorker(optimizer, sync_every, n_state)
    if name == "easgd":
        return EasgdWorker(optimizer, sync_every, n_state)
    return GemWorker(optimizer, sync_every, n_state, n_workers=n_workers, **chosen)


def make_server_side(
    name: str,
    n_workers: int,
    optimizer: ServerOptimizer,
    *,
    is_synchronous: bool = False,
    n_state: int = 0,
    **settings: float,
) -> ServerSide:
    """Return the server's half of an algorithm.

    Args:
        name: As for :func:`make_worker_side`.
        n_workers: The number of all workers at the start.
        optimizer: Applies the gradients of Downpour, which owns it; the others need none.
        is_synchronous: Whether Downpour waits for a quorum and applies the mean.
        n_state: The number of values of persistent state.
        settings: As for :func:`make_worker_side`; ``quorum`` of Downpour, a share of the workers.

    Raises:
        OptionError: There is no such algorithm or setting, or a number is out of its range.
    """
    chosen = _checked(name, n_workers, settings)
    if is_synchronous and name != "downpour":
        raise OptionError("synchronous", f"{name} has no such mode; leave it out, or use downpour")
    if is_synchronous:
        return SynchronousServer(optimizer, n_workers, n_state, chosen["quorum"])
    if name == "downpour":
        return DownpourServer(optimizer, n_workers, n_state)
    if name == "easgd":
        return EasgdServer(chosen["beta"] / n_workers, n_workers, n_state)
    return GemServer(n_workers, n_state)


def _checked(name: str, n_workers: int, settings: Mapping[str, float]) -> dict[str, float]:
    """Return the settings of an algorithm with its defaults."""
    if name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise OptionError("algorithm", f"there is no {name!r}; choose one of {known}")
    if n_workers < 1:
        raise OptionError("n_workers", f"{n_workers} workers cannot train; give at least 1")
    chosen = {**ALGORITHMS[name], **settings}
    for key, value in chosen.items():
        if key not in ALGORITHMS[name]:
            known = ", ".join(ALGORITHMS[name])
            raise OptionError(key, f"{name} has no such setting; it has {known}")
        if not math.isfinite(value) or value < 0:
            raise OptionError(key, f"{value!r} must be a number of at least 0")
        if value > 1 and key in ("quorum", "beta", "mu"):
            raise OptionError(key, f"{value!r} must be at most 1")
    if chosen.get("quorum") == 0:
        raise OptionError("quorum", "0 is no share of the workers; give 0.5 to 1")
    return chosen
