"""Makes ChainerMN's communicator: the forkserver first, then MPI, then who shares this node."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

from overlapiter.errors import BindingWarning
from overlapiter.node import (
    Place,
    binding_words,
    count_cores,
    node_among,
    set_node,
    this_node,
    this_place,
)

from .failure import abort_on_failure
from .startup import start_forkserver


class Gathering(Protocol):
    """What is needed of mpi4py's communicators."""

    @property
    def rank(self) -> int:
        """Of this process."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def allgather(self, sendobj: Place) -> list[Place]:
        """Return what each rank sent, by rank."""


# ChainerMN has no types; the signature is its own.
def create_communicator(
    communicator_name: str = "pure_nccl", mpi_comm: Any = None, **kwargs: Any
) -> Any:
    """Return what ``chainermn.create_communicator`` returns for the same arguments.

    Before, the forkserver is started; after, each rank knows who shares its node, by which the
    iterators choose their defaults; and an exception that nobody catches ends the job. Collective:
    waits for all ranks of the communicator.

    Raises:
        PipelineError: The forkserver cannot be started.
        ImportError: mpi4py is missing.

    Warns:
        BindingWarning: The launcher keeps the ranks of a node from most of its cores.
    """
    abort_on_failure()  # before what may fail on one rank alone, a broken CuPy for example
    start_forkserver()
    import chainermn
    from mpi4py import MPI

    comm = chainermn.create_communicator(communicator_name, mpi_comm, **kwargs)
    find_node(comm.mpi_comm, MPI.COMM_WORLD.size)
    return comm


def find_node(mpi_comm: Gathering, world_size: int) -> None:
    """Ask all ranks of a communicator who shares this node. Collective.

    A communicator of some of the ranks does not know the others, so it does not overrule who does.
    """
    places = mpi_comm.allgather(this_place())
    if mpi_comm.size == world_size or this_node().local_size == 1:
        set_node(node_among(mpi_comm.rank, places))
    if mpi_comm.size == world_size and (
        words := binding_words(mpi_comm.rank, places, count_cores())
    ):
        warnings.warn(words, BindingWarning, stacklevel=3)
