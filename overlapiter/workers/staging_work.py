"""The work of a prefetcher: parts of mini-batches, and examples on their way to the disk."""

from __future__ import annotations

from typing import NamedTuple

from overlapiter.sources import Copy


class StageTask(NamedTuple):
    """A part of a mini-batch whose files are to be staged.

    Attributes:
        part_id: For the answer.
        indices: Indices of the examples.
        n_files: Most files that an example is known to open; for datasets that declare none.
        avoid: Those of the indices on which prefetchers died.
    """

    part_id: int
    indices: list[int]
    n_files: int
    avoid: list[int]


class Example:
    """An example on its way to the staging directory.

    Attributes:
        index: Its index.
        is_declared: Whether its files are known without asking the dataset for it.
        is_complete: Whether all its files are staged.
        is_settled: Whether their copies need not be compared with the sources again.
        staged: Source path to staged copy of those that are.
        stamps: The stamps of these copies.
        missing: Source path and absolute path of those to copy.
    """

    __slots__ = ("index", "is_complete", "is_declared", "is_settled", "missing", "staged", "stamps")

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_declared = True
        self.is_complete = True
        self.is_settled = True
        self.staged: dict[str, Copy] = {}
        self.stamps: list[int] = []
        self.missing: list[tuple[str, str]] = []


class PartInHand:
    """A part, with the number of its examples that wait for the slow store."""

    def __init__(self, task: StageTask) -> None:
        self.task = task
        self.staged: dict[str, Copy] = {}
        self.n_waiting = 0
