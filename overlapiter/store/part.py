"""The files of one request on their way through the stager."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field

from .copier import Content
from .elsewhere import Holders
from .extents import Extent
from .outcome import Done, MakeRoom, Staged
from .store import Wanted
from .tiers import Copy

#: So many bytes of a part are kept in memory; then they are written and published.
_MOST_BATCH_BYTES = 8 << 20


#: What has become of claimed files, by their keys.
Batch = dict[int, Content | Copy | Staged]


@dataclasses.dataclass(eq=False)
class Part:
    """The files of one request on their way; guarded by the lock of the stager."""

    done: Done
    make_room: MakeRoom | None
    partly: Done | None
    trusted: Mapping[int, Extent]
    holders: Mapping[int, Holders]
    answers: dict[int, Staged] = field(default_factory=dict)
    missing: list[Wanted] = field(default_factory=list)
    low: dict[Wanted, Extent] = field(default_factory=dict)  # found in slower tiers, and to rise
    outdated: list[Extent] = field(default_factory=list)
    verified: list[Extent] = field(default_factory=list)  # the first time since the last boot
    unseen: dict[int, Staged] = field(default_factory=dict)  # tiers that did not answer, and why
    batch: Batch = field(default_factory=dict)  # to be written or published together
    batch_bytes: int = 0  # of what is to be written
    home: int = 0  # the tier whose index holds the claims
    has_claims: bool = False
    is_held_up: bool = False  # it was there at the last flush
    n_comparing: int = 0
    n_copying: int = 0
    n_jobs: int = 1  # besides the copies; one until everything is claimed

    def batch_with(self, copied: Mapping[Wanted, Content | Copy | Staged]) -> Batch | None:
        """End the copies of claimed files; return what is to be published, which is a job."""
        for file, got in copied.items():
            self.batch[file.key] = got
            if isinstance(got, Content):
                self.batch_bytes += len(got.data)
            elif isinstance(got, Staged):
                self.answers[file.key] = got
        self.n_copying -= len(copied)
        if self.n_copying and self.batch_bytes <= _MOST_BATCH_BYTES:
            return None  # another one ends it
        return self.take_batch()

    def take_batch(self) -> Batch:
        """Return what is to be published, and begin anew; the part is not done before that job."""
        self.n_jobs += 1
        batch, self.batch, self.batch_bytes = self.batch, {}, 0
        return batch
