"""How the ranks of a job agree on the order that they share.

It calls the communicator that it is given, and does not import MPI.
"""

from __future__ import annotations

import contextlib
import operator
import secrets
from typing import Any, Protocol, TypeVar

from .errors import OptionError
from .node import this_host
from .scatter import Remainder, ScatteredOrder

ItemT = TypeVar("ItemT")


class Communicator(Protocol):
    """A communicator of ChainerMN, which has ``gather_obj``, or of mpi4py, with ``allgather``."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""


def scatter_order(
    comm: Communicator,
    seed: int | None = None,
    *,
    shuffle: bool = True,
    remainder: Remainder = "fill",
) -> ScatteredOrder:
    """Return an order sampler that scatters each epoch anew over all ranks of ``comm``.

    Every rank reads the whole list of the dataset and gives its sampler to its iterator.
    Collective: it blocks until each rank has sent the others a few bytes. Nothing else is sent.

    Args:
        comm: A communicator of ChainerMN or of mpi4py, an :class:`overlapiter.Rendezvous`, or an
            ``overlapiter.torch.Communicator``.
        seed: The orders follow from it alone; the same on all ranks. With None rank 0 draws one,
            which that of a snapshot replaces.
        shuffle: Whether each epoch has an order of its own; otherwise all are ascending.
        remainder: What to do where the ranks cannot divide the data set evenly. ``"fill"`` reads a
            few examples twice in an epoch, ``"drop"`` leaves out a few, others in each epoch, and
            ``"uneven"`` gives some ranks one example less, which is for evaluation.

    Raises:
        OptionError: An argument cannot work, or is not the same on all ranks; on each of them.
    """
    if seed is not None:
        with contextlib.suppress(TypeError):  # what is no number is refused on all ranks, below
            seed = operator.index(seed)  # of any type; NumPy's is not one that JSON has
    node = " ".join(this_host().key)  # what a directory gives back has no tuples
    agreed: dict[str, Any] = {"seed": seed, "shuffle": shuffle, "remainder": remainder}
    found = allgather(comm, {"node": node, "drawn_seed": secrets.randbits(48), **agreed})
    for name in agreed:
        values = [each[name] for each in found]
        if any(value != values[0] for value in values):
            raise OptionError(name, f"it differs between the ranks: {values}; give all the same")
    return ScatteredOrder(
        comm.rank,
        comm.size,
        found[0]["drawn_seed"] if seed is None else seed,
        shuffle=shuffle,
        remainder=remainder,
        local_ranks=[rank for rank, each in enumerate(found) if each["node"] == node],
        is_seed_drawn=seed is None,
    )


def allgather(comm: Communicator, item: ItemT) -> list[ItemT]:
    """Return what each rank sends, by rank. Collective."""
    gather_obj = getattr(comm, "gather_obj", None)
    if gather_obj is None:
        return comm.allgather(item)  # type: ignore[attr-defined,no-any-return]  # mpi4py's
    return comm.bcast_obj(gather_obj(item))  # type: ignore[attr-defined,no-any-return]  # ChainerMN's
