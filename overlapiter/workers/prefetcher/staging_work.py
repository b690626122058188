"""The messages about a task: what a prefetcher is to stage, and what became of it."""

from __future__ import annotations

from typing import NamedTuple

from overlapiter.store.elsewhere import Holders
from overlapiter.store.eviction import Victim


class StageTask(NamedTuple):
    """Examples whose files are to be staged.

    Attributes:
        task_id: For the answer.
        indices: Indices of the examples; none of them twice.
        n_files: Most files that an example is known to open; for datasets that declare none.
        avoid: Those of the indices on which prefetchers died.
        suspects: Those of which a file reader has found a copy damaged or gone.
        trusted: Extents that this run has compared with their sources already, packed.
        victims: What may be evicted for it; None as long as no directory is known to be full.
        holders: Which other nodes may hold the files of which of the examples.
        batches: The mini-batches that they are of, for the trace.
    """

    task_id: int
    indices: list[int]
    n_files: int
    avoid: list[int]
    suspects: list[int]
    trusted: bytes
    victims: list[Victim] | None
    holders: dict[int, Holders]
    batches: list[int]


class Finding(NamedTuple):
    """What has become of the files of an example.

    Attributes:
        example: Its index.
        extents: Where those of its files that are staged lie, packed.
        is_complete: Whether these are all its files, and need not be looked at again in this run.
        was_refused: Whether one of them was not staged for lack of room.
        paths: Their absolute paths, where the dataset does not declare them.
    """

    example: int
    extents: bytes
    is_complete: bool
    was_refused: bool
    paths: tuple[str, ...]


#: What became of victims, by their examples: where their files are now, packed; nothing if they
#: are gone, None if they were not there.
Moved = dict[int, bytes | None]
