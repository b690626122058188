"""Tasks of prefetchers: what is to be staged, what is known of it so far, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from overlapiter.board import Counter, Row
from overlapiter.store.elsewhere import Holders
from overlapiter.store.eviction import Victim
from overlapiter.store.extents import Extent, packed, unpacked
from overlapiter.store.outcome import Outcome, Staged

from .evictor import RoomForTask

#: What counts the files of which became what, and their bytes; others were refused.
_COUNTERS = (
    (Outcome.COPIED, Counter.FILES_STAGED, Counter.BYTES_STAGED),
    (Outcome.FETCHED, Counter.FILES_PEER, Counter.BYTES_PEER),
    (Outcome.FOUND, Counter.FILES_FOUND_STAGED, None),
    (Outcome.SOURCE_FAILED, None, None),
)


class StageTask(NamedTuple):
    """Examples whose files are to be staged."""

    task_id: int  # for the answer
    indices: list[int]  # indices of the examples; none of them twice
    n_files: int  # most files that an example is known to open; for datasets that declare none
    avoid: list[int]  # those of the indices on which prefetchers died
    suspects: list[int]  # those of which a file reader has found a copy damaged or gone
    trusted: bytes  # extents that this run has compared with their sources already, packed
    #: What may be evicted for it; None as long as no directory is known to be full.
    victims: list[Victim] | None
    holders: dict[int, Holders]  # which other nodes may hold the files of which of the examples
    batches: list[int]  # the mini-batches that they are of, for the trace


#: What has become of the files of an example: the example; where those of its files that are
#: staged lie, packed; whether these are all its files, and need not be looked at again in this run;
#: whether one of them was not staged for lack of room; and whether the dataset, which does not
#: declare them, was asked for them. A plain tuple: a message would name a class of ours each time.
Finding: TypeAlias = tuple[int, bytes, bool, bool, bool]


class ExampleAtHand:
    """An example whose files are being staged."""

    __slots__ = ("index", "is_complete", "is_discovered", "is_followed", "keys")

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_complete = True
        self.is_followed = False  # whether all its files are known
        self.is_discovered = False  # whether any of them was found by asking the dataset
        self.keys: list[int] = []


class TaskAtHand:
    """A task at hand; the lock of the prefetcher guards its examples and answers."""

    def __init__(self, task: StageTask, room: RoomForTask) -> None:
        self.task = task
        self.room = room
        self.make_room = None if task.victims is None else room.make
        self.examples: list[ExampleAtHand] = []
        self.answers: dict[int, Staged] = {}
        self.trusted = unpacked(task.trusted)
        # By the keys of the files.
        self.suspects: set[int] = set()
        self.holders: dict[int, Holders] = {}
        self.n_reported = 0
        self.begun_ns = time.monotonic_ns()
        self.n_waiting = 1  # answers: for all declared files, and for each other example

    def note_files(self, index: int, keys: Iterable[int]) -> None:
        """Note of files of an example what is known of it."""
        if index in self.task.suspects:
            self.suspects.update(keys)
        if index in self.task.holders:
            self.holders |= dict.fromkeys(keys, self.task.holders[index])

    def take(self, answers: dict[int, Staged], row: Row) -> None:
        """Take answers for files; count those that are new.

        Of examples that are asked for one after the other, one may find what another has copied.
        """
        _count([answer for key, answer in answers.items() if self.answers.get(key) != answer], row)
        self.answers |= answers

    def is_settled(self, example: ExampleAtHand) -> bool:
        """Return whether there is an answer for each file of an example."""
        return example.is_followed and all(key in self.answers for key in example.keys)

    def finding(self, example: ExampleAtHand) -> Finding:
        """Return what has become of the files of a settled example."""
        extents: list[Extent] = []
        is_complete, was_refused = example.is_complete, False
        for key in example.keys:
            outcome, extent, is_settled, _ = self.answers[key]
            if extent is not None:
                extents.append(extent)
            is_complete &= is_settled and extent is not None
            was_refused |= outcome is Outcome.REFUSED
        return example.index, packed(extents), is_complete, was_refused, example.is_discovered


def _count(answers: list[Staged], row: Row) -> None:
    n_left = len(answers)
    for outcome, files, size in _COUNTERS:
        own = [answer for answer in answers if answer.outcome is outcome]
        n_left -= len(own)
        if own and files:
            row.add(files, len(own))
        if own and size:
            row.add(size, sum([answer.extent.size for answer in own if answer.extent]))
            row.add(Counter.READ_NS, sum([answer.read_ns for answer in own]))
    if n_left:
        row.add(Counter.FILES_REFUSED, n_left)
