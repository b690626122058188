"""The files of the coming leases on the node's own disk, shared by the workers of the node.

Each worker stages the files of its own leases; where several workers of a node have ranges of one
file, the store has one of them copy it, and the others wait for that. The staging directory is the
one that OverlapIterator and the commands use.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from overlapiter.options import Staging
from overlapiter.planning import staging_plan
from overlapiter.store.outcome import Staged
from overlapiter.store.site import Run
from overlapiter.store.stager import Stager
from overlapiter.store.store import Wanted
from overlapiter.workers.copies import StagedCopies


class StagedFiles:
    """Stages files and says where their copies lie. For one thread, which may wait for the source.

    A rank that stages must not fork afterwards: its index is open.

    Args:
        directory: The staging directory.
        source: Root of the files on the slow store.
        warn: Called with what the user should know.

    Raises:
        OptionError: A value cannot work here.
        StagingError: The staging directory cannot be made or written.
    """

    def __init__(self, directory: str, source: str, warn: Callable[[str], None]) -> None:
        plan = staging_plan(Staging(directory, source=source), (), [], is_training=False)
        facts = {"command": "overlapiter train", "trainer_pid": os.getpid(), "staging": {}}
        self._stores = plan.stores(Run(secrets.randbits(62), facts), warn)
        self._stager = Stager(self._stores, plan.origin(), plan.validate, lambda job: job(), warn)
        self._copies = StagedCopies(plan)

    def staged(self, path: str) -> str:
        """Stage a file, or wait until another worker of the node has; return where to read it.

        The path lasts until the next call; without a copy it is that of the source.
        """
        (store, *_) = self._stores
        key = store.key_of(path)
        answers: dict[int, Staged] = {}
        self._stager.stage([Wanted(key, path)], answers.update)
        extent = answers[key].extent
        self._copies.begin_part({} if extent is None else {key: extent})
        self._copies.begin_example()
        return self._copies.local_path(path) or path

    def close(self) -> None:
        """Remove what was made for reading; what is staged stays for the next run."""
        self._copies.close()
        self._stager.close()
