"""The work of a prefetcher: parts of mini-batches, and examples on their way to the disk."""

from __future__ import annotations

from typing import NamedTuple

from overlapiter.sources import Copy, PlainCopies
from overlapiter.staging.store import Staged
from overlapiter.staging.tiers import Tiers
from overlapiter.store.eviction import StagedFile, Victim
from overlapiter.workers.prefetcher.evictor import ABSENT, RoomForPart, file_id


class StageTask(NamedTuple):
    """A part of a mini-batch whose files are to be staged.

    Attributes:
        part_id: For the answer.
        indices: Indices of the examples.
        n_files: Most files that an example is known to open; for datasets that declare none.
        avoid: Those of the indices on which prefetchers died.
        tiers: The tier of each example, as far as the supervisor knows; else negative.
        victims: What may be evicted for it; None as long as no directory is known to be full.
    """

    part_id: int
    indices: list[int]
    n_files: int
    avoid: list[int]
    tiers: list[int]
    victims: list[Victim] | None


#: A :class:`Finding` as messages have it; see :data:`~overlapiter.sources.PlainCopies`.
PlainFinding = tuple[int, int, list[tuple[int, int]], tuple[str, ...], bool]


class Finding(NamedTuple):
    """What has become of an example.

    Attributes:
        example: Its index.
        tier: The fastest tier that any of its files is in; ABSENT if none is staged.
        files: Those of its files that are.
        paths: The same by their absolute paths, where the dataset does not declare them.
        was_refused: Whether one of them was not staged for lack of room.
    """

    example: int
    tier: int
    files: list[StagedFile]
    paths: tuple[str, ...]
    was_refused: bool

    @classmethod
    def from_plain(cls, plain: PlainFinding) -> Finding:
        """Return the finding that a message told of."""
        example, tier, files, paths, was_refused = plain
        return cls(example, tier, [StagedFile(*file) for file in files], paths, was_refused)


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
        sizes: Absolute path to size in bytes of those that are staged.
        tier: The fastest tier that any of them is in.
        was_refused: Whether there was no room for one.
    """

    __slots__ = (
        "index", "is_complete", "is_declared", "is_settled", "missing", "sizes", "staged", "stamps",
        "tier", "was_refused",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_declared = True
        self.is_complete = True
        self.is_settled = True
        self.staged: dict[str, Copy] = {}
        self.stamps: list[int] = []
        self.missing: list[tuple[str, str]] = []
        self.sizes: dict[str, int] = {}
        self.tier = 127
        self.was_refused = False

    @property
    def absolute_paths(self) -> list[str]:
        """Its files that are known so far, staged or not."""
        return [*self.sizes, *(absolute for _, absolute in self.missing)]

    def finding(self) -> PlainFinding:
        """Return what the supervisor is told of it."""
        files = [(file_id(path), size_bytes) for path, size_bytes in self.sizes.items()]
        tier = self.tier if files else ABSENT
        paths = () if self.is_declared else tuple(self.sizes)
        return self.index, tier, files, paths, self.was_refused


class PartInHand:
    """A part that is being staged.

    Attributes:
        task: What to do.
        room: What may be evicted for it.
        staged: Source path to staged copy.
        findings: What has become of its examples and is news to the supervisor.
        n_waiting: Examples that wait for the slow store.
    """

    def __init__(self, task: StageTask, room: RoomForPart | None) -> None:
        self.task = task
        self.room = room
        self.staged: PlainCopies = {}
        self.findings: list[PlainFinding] = []
        self.n_waiting = 0
        self._known_tiers = dict(zip(task.indices, task.tiers, strict=True))

    def finish(self, example: Example) -> None:
        """Take up what has become of an example."""
        for path, copy in example.staged.items():
            self.staged[path] = copy.path, copy.stamp
        if not example.is_complete or example.tier != self._known_tiers[example.index]:
            self.findings.append(example.finding())

    def copy(self, tiers: Tiers, absolute: str) -> Staged:
        """Copy a file to the staging directory, making room for it where that may be done."""
        room = self.room
        return tiers.copy(absolute, None if room is None or not room.is_possible else room.make)
