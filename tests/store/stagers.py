"""A stager over some tiers, its source, and what it has said."""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from overlapiter.store.elsewhere import Fetches, Holders
from overlapiter.store.extents import Extent
from overlapiter.store.outcome import MakeRoom, Outcome, Staged
from overlapiter.store.site import Run, Site
from overlapiter.store.stager import Stager
from overlapiter.store.store import Store, Wanted
from tests.store.stores import BLOCK_BYTES, SOURCE
from tests.support import staged
from tests.support.origins import MemoryOrigin

Answers = dict[str, Staged]


def contents_of(n_files: int, size_bytes: int = BLOCK_BYTES) -> dict[str, bytes]:
    """Return the content of each of some files of equal size."""
    numbers = random.Random(n_files)
    return {f"{SOURCE}/{n}.bin": numbers.randbytes(size_bytes) for n in range(n_files)}


class Setting:
    """A stager whose jobs are done one after the other, in the thread that asks.

    Args:
        folder: Where the staging directories are.
        contents: The source files.
        n_blocks: The capacity of each tier, in blocks, the fastest first; None for no limit.
        run: The number of the run.
        validate: As for the stager.
        submit: Does the jobs otherwise.
        peers: Fetches files from other nodes.

    Attributes:
        paths: The source files.
        said: What the user was told, each text once.
    """

    def __init__(
        self,
        folder: Path,
        contents: dict[str, bytes],
        *n_blocks: int | None,
        run: int = 1,
        validate: Any = "mtime",
        submit: Callable[[Callable[[], None]], object] | None = None,
        peers: Fetches | None = None,
    ) -> None:
        self.origin = MemoryOrigin(contents)
        self.paths = [*contents]
        self.directories = [folder / f"tier-{number}" for number in range(len(n_blocks) or 1)]
        self.said: list[str] = []
        capacities = [n and n * BLOCK_BYTES for n in n_blocks or (None,)]
        self.stores = [
            Store(Site(str(directory), capacity), SOURCE, Run(run, {}), tier=tier, warn=self._say)
            for tier, (directory, capacity) in enumerate(
                zip(self.directories, capacities, strict=True)
            )
        ]
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        submit = submit or self._jobs.append
        self.stager = Stager(self.stores, self.origin, validate, submit, self._say, peers=peers)

    def _say(self, text: str) -> None:
        if text not in self.said:
            self.said.append(text)

    def wanted(self, paths: Iterable[str]) -> list[Wanted]:
        return [Wanted(self.stores[0].key_of(path), path) for path in paths]

    def keys(self, paths: Iterable[str]) -> list[int]:
        return [file.key for file in self.wanted(paths)]

    def stage(
        self,
        *paths: str,
        make_room: MakeRoom | None = None,
        suspects: Iterable[str] = (),
        trusted: Mapping[str, Extent] | None = None,
    ) -> Answers:
        """Return what becomes of files of one part; waits for all of them."""
        answers: dict[int, Staged] = {}
        key_of = self.stores[0].key_of
        self.stager.stage(
            self.wanted(paths),
            answers.update,
            make_room,
            [key_of(path) for path in suspects],
            {key_of(path): extent for path, extent in (trusted or {}).items()},
            lambda _answers: None,
            {key_of(path): Holders((1,)) for path in paths},
        )
        while self._jobs:
            self._jobs.popleft()()
        deadline = time.monotonic() + 60
        while len(answers) < len(paths):  # others do the jobs
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return {path: answers[key_of(path)] for path in paths}

    def outcomes(self, *paths: str, **options: Any) -> list[Outcome]:
        """Stage files; return what became of them, each copy being right."""
        answers = self.stage(*paths, **options)
        for path, answer in answers.items():
            if answer.extent is not None:
                assert self.read(answer.extent) == self.origin.contents[path]
        return [answers[path].outcome for path in paths]

    def read(self, extent: Extent) -> bytes:
        return staged.read_staged(self.directories[extent.tier], extent._replace(tier=0))

    def tier_of(self, path: str) -> int | None:
        """Return where a file is staged; None if it is nowhere."""
        for tier, store in enumerate(self.stores):
            if store.look(self.wanted([path])):
                return tier
        return None

    def extent(self, path: str) -> Extent:
        """Return the copy in the fastest tier that has one."""
        for store in self.stores:
            for found in store.look(self.wanted([path])).values():
                return found.extent
        raise AssertionError(f"{path} is not staged")

    def n_blocks(self, tier: int = 0) -> int:
        """Return what is charged in a tier, in blocks, once what is reserved is given back."""
        self.stores[tier].close()
        return staged.charged_bytes(self.directories[tier]) // BLOCK_BYTES

    def close(self) -> None:
        self.stager.close()
