"""The ranks of a job agree on the order that they share.

It calls methods of the communicator that it is given, and needs no MPI itself.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple, Protocol

from .errors import OptionError
from .node import this_place
from .scatter import Remainder, ScatteredOrder


class Communicator(Protocol):
    """A communicator of ChainerMN, which has ``gather_obj``, or of mpi4py, with ``allgather``."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""


class _Wish(NamedTuple):
    """What a rank tells the others."""

    node: tuple[str, str]
    seed: int | None
    drawn_seed: int
    shuffle: bool
    remainder: str


def scatter_order(
    comm: Communicator,
    seed: int | None = None,
    *,
    shuffle: bool = True,
    remainder: Remainder = "fill",
) -> ScatteredOrder:
    """Return an order sampler that scatters each epoch anew over all ranks of ``comm``.

    Every rank reads the whole list of the dataset and gives its sampler to its iterator. To be
    called on all ranks at the same time: it blocks until each has told the others a few bytes,
    and that is all that is ever sent.

    Args:
        comm: A communicator of ChainerMN or of mpi4py.
        seed: The orders follow from it, and from nothing else; the same on all ranks. None has
            rank 0 draw one; a snapshot then brings its own.
        shuffle: Whether each epoch has an order of its own; otherwise all are ascending.
        remainder: As for :class:`ScatteredOrder`: ``"fill"``, ``"drop"`` or ``"uneven"``.

    Raises:
        OptionError: An argument cannot work, or is not the same on all ranks; on each of them.
    """
    own = _Wish(this_place().key, seed, secrets.randbits(48), shuffle, remainder)
    wishes = _allgather(comm, own)
    for name in ("seed", "shuffle", "remainder"):
        values = [getattr(wish, name) for wish in wishes]
        if any(value != values[0] for value in values):
            raise OptionError(name, f"it differs between the ranks: {values}; give all the same")
    return ScatteredOrder(
        comm.rank,
        comm.size,
        wishes[0].drawn_seed if seed is None else seed,
        shuffle=shuffle,
        remainder=remainder,
        local_ranks=[rank for rank, wish in enumerate(wishes) if wish.node == own.node],
        is_seed_drawn=seed is None,
    )


def _allgather(comm: Communicator, wish: _Wish) -> list[_Wish]:
    gather_obj = getattr(comm, "gather_obj", None)
    if gather_obj is None:
        found = comm.allgather(tuple(wish))  # type: ignore[attr-defined]  # mpi4py's
    else:
        found = comm.bcast_obj(gather_obj(tuple(wish)))  # type: ignore[attr-defined]  # ChainerMN's
    return [_Wish(*fields) for fields in found]
