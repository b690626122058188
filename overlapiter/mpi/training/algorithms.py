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

from .optimizers import ServerOptimizer
from .serverside import DownpourServer, EasgdServer, GemServer, ServerSide, SynchronousServer
from .settings import Settings
from .workerside import DownpourWorker, EasgdWorker, GemWorker, WorkerSide


def make_worker_side(settings: Settings, n_workers: int, n_state: int = 0) -> WorkerSide:
    """Return a worker's half of the algorithm.

    Args:
        settings: Which one, and its numbers. The optimizer makes the local steps, which Downpour
            does only where ``sync_every`` is above 1.
        n_workers: The number of all workers at the start.
        n_state: The number of values of persistent state.
    """
    optimizer, sync_every = _optimizer(settings), settings.sync_every
    if settings.algorithm == "downpour":
        return DownpourWorker(optimizer, sync_every, n_state)
    if settings.algorithm == "easgd":
        return EasgdWorker(optimizer, sync_every, n_state)
    eta, kappa = settings.gem_eta, settings.gem_kappa
    return GemWorker(optimizer, sync_every, n_state, n_workers=n_workers, eta=eta, kappa=kappa)


def make_server_side(settings: Settings, n_workers: int, n_state: int = 0) -> ServerSide:
    """Return the server's half of the algorithm; the arguments are those of the worker's.

    The optimizer applies the gradients of Downpour; the others need none.
    """
    if settings.algorithm == "easgd":
        return EasgdServer(settings.beta / n_workers, n_workers, n_state)
    if settings.algorithm == "gem":
        return GemServer(n_workers, n_state)
    optimizer = _optimizer(settings)
    if settings.synchronous:
        return SynchronousServer(optimizer, n_workers, n_state, settings.quorum)
    return DownpourServer(optimizer, n_workers, n_state)


def _optimizer(settings: Settings) -> ServerOptimizer:
    name, rate = settings.optimizer, settings.learning_rate
    return ServerOptimizer(name, rate, momentum=settings.momentum)
