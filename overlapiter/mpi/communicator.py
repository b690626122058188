"""The start of a rank: the forkserver, then MPI and ChainerMN, then this node's ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overlapiter.errors import BindingWarning, warn
from overlapiter.node import (
    binding_words,
    count_cores,
    node_among,
    set_node,
    this_host,
    this_node,
)
from overlapiter.workers.start.launch import PRELOAD
from overlapiter.workers.start.launch import start_forkserver as _start

from .failure import abort_on_failure


def start_forkserver(preload: Sequence[str] = ()) -> None:
    """Start the forkserver from which the workers of all iterators come.

    Call it at the top of a program, before MPI; :func:`create_communicator` calls it, too. The
    forkserver imports Chainer, once for all workers, while the program goes on. A forkserver that
    runs already stays as it is.

    It is started by vfork and exec, which leave the memory of this process alone, so it is safe
    after MPI_Init, too. In a worker that imports the script this function does nothing.

    Args:
        preload: Further modules for it to import, such as that of the dataset.

    Raises:
        PipelineError: It cannot be started.
    """
    _start((*PRELOAD, *preload))


# ChainerMN has no types; the signature is its own.
def create_communicator(
    communicator_name: str = "pure_nccl", mpi_comm: Any = None, **kwargs: Any
) -> Any:
    """Return what ``chainermn.create_communicator`` returns for the same arguments.

    It starts the forkserver before, finds which ranks share a node after, for the defaults of the
    iterators, and has an uncaught exception end the job. Collective: it waits for all ranks.

    Raises:
        PipelineError: The forkserver cannot be started.
        ImportError: mpi4py is missing, or, as a NoChainerError, Chainer is.

    Warns:
        BindingWarning: The launcher binds the ranks of a node to few of its cores.
    """
    abort_on_failure()  # first: importing a broken CuPy, for example, may fail on one rank alone
    start_forkserver()
    import overlapiter.chainer  # noqa: F401, I001  # says what to do where Chainer is missing
    import chainermn
    from mpi4py import MPI

    comm = chainermn.create_communicator(communicator_name, mpi_comm, **kwargs)
    find_node(comm.mpi_comm, MPI.COMM_WORLD.size)
    return comm


def find_node(mpi_comm: Any, world_size: int) -> None:
    """Find which ranks of a communicator share this node. Collective.

    What a communicator of some ranks finds does not replace what one of all ranks has found.
    """
    hosts = mpi_comm.allgather(this_host())
    if mpi_comm.size == world_size or this_node().local_size == 1:
        set_node(node_among(mpi_comm.rank, hosts))
    if mpi_comm.size == world_size and (
        words := binding_words(mpi_comm.rank, hosts, count_cores())
    ):
        warn(words, BindingWarning)
