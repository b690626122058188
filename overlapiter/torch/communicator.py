"""The processes of ``torch.distributed``, for ``overlapiter.scatter_order``."""

from __future__ import annotations

from typing import Any

import torch.distributed


class Communicator:
    """A process group, as what ``overlapiter.scatter_order`` needs of a communicator.

    Args:
        group: The process group; None for that of all processes, or for this one alone where
            ``torch.distributed`` is not initialized.

    Attributes:
        rank: The rank of this process.
        size: The number of ranks.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._is_alone = not torch.distributed.is_initialized()
        self.rank = 0 if self._is_alone else torch.distributed.get_rank(group)
        self.size = 1 if self._is_alone else torch.distributed.get_world_size(group)

    def allgather(self, thing: Any) -> list[Any]:
        """Return what each rank has given, by rank. Blocks until all have."""
        found = [thing] * self.size
        if not self._is_alone:
            torch.distributed.all_gather_object(found, thing, self._group)
        return found
