"""Waiting for the copies of other processes, as long as these write something."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeAlias

from .store import Store, Wanted

#: How long the process that copies a file may go without writing a byte.
_PATIENCE_SECONDS = 5.0
#: Looks are far less apart than that; one that comes later counts for no more.
_MOST_OF_LOOK_SECONDS = 1.0
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.002, 0.05

#: What an owner has written, as :meth:`.Store.progress` returns it; None if it has ended.
Progress: TypeAlias = list[tuple[int, int]] | None


class Wait:
    """The wait for files that other processes copy, each with its owner.

    Owners for which one wait was in vain are in ``stuck`` for the next ones, with what they had
    written; they are waited for again once that has changed.
    """

    def __init__(
        self, store: Store, owners: Mapping[Wanted, int], stuck: dict[int, Progress]
    ) -> None:
        self._store = store
        self.owners = owners
        self._stuck = stuck
        self._progress: dict[int, Progress] = {}
        self._waited_seconds = 0.0  # since the owners have written something
        self._looked_seconds = 0.0
        self._pause_seconds = _FIRST_POLL_SECONDS

    def pause(self) -> float:
        """Wait until the next look, longer each time; return how long, in seconds."""
        pause_seconds = self._pause_seconds
        time.sleep(pause_seconds)
        self._pause_seconds = min(1.5 * pause_seconds, _LONGEST_POLL_SECONDS)
        return pause_seconds

    def is_over(self) -> bool:
        """Return whether one of the files is copied no more, as its owner has ended, for example.

        Raises TimeoutError if the owners live, and have written nothing for too long.
        """
        store, owners = self._store, self.owners
        if len(store.being_copied([file.key for file in owners])) < len(owners):
            return True
        progress = {owner: store.progress(owner) for owner in {*owners.values()}}
        if None in progress.values():
            store.take_over()
            return True
        # A job that is suspended as a whole, owners and all, does not wait.
        looked_seconds, self._looked_seconds = self._looked_seconds, time.monotonic()
        self._waited_seconds += min(self._looked_seconds - looked_seconds, _MOST_OF_LOOK_SECONDS)
        if progress != self._progress:
            self._progress, self._waited_seconds = progress, 0.0
        if self._waited_seconds >= _PATIENCE_SECONDS:
            self._stuck.update(progress)
        if progress.items() <= self._stuck.items():
            raise TimeoutError("the owners write nothing")
        return False
