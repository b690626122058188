"""The files of one request on their way through the stager."""

from __future__ import annotations

from collections.abc import Mapping

from .copier import Content, Copy
from .elsewhere import Holders
from .extents import Extent
from .outcome import Done, MakeRoom, Staged
from .store import Wanted

#: So many bytes of a part are kept in memory; then they are written and published.
_MOST_FETCHED_BYTES = 8 << 20


class Batch:
    """What has become of files of a part and is to be written or published together."""

    def __init__(self) -> None:
        self.contents: list[Content] = []
        self.rising: list[Content] = []  # read from a slower tier
        self.copies: list[Copy] = []
        self.failed: list[int] = []
        self._content_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.contents or self.rising or self.copies or self.failed)

    @property
    def is_large(self) -> bool:
        """Whether it is not to grow any more."""
        return self._content_bytes > _MOST_FETCHED_BYTES

    def add(self, key: int, got: Content | Copy | Staged | None, *, is_rising: bool) -> None:
        """Take what has become of a file that was claimed."""
        if isinstance(got, Content):
            (self.rising if is_rising else self.contents).append(got)
            self._content_bytes += len(got.data)
        elif isinstance(got, Copy):
            self.copies.append(got)
        else:
            self.failed.append(key)


class Part:
    """The files of one request on their way; guarded by the lock of the stager."""

    __slots__ = (
        "answers",
        "batch",
        "done",
        "has_claims",
        "holders",
        "home",
        "is_held_up",
        "make_room",
        "missing",
        "n_comparing",
        "n_copying",
        "n_jobs",
        "outdated",
        "partly",
        "risen",
        "trusted",
    )  # fmt: skip

    def __init__(
        self,
        done: Done,
        make_room: MakeRoom | None,
        partly: Done | None,
        trusted: Mapping[int, Extent],
        holders: Mapping[int, Holders],
    ) -> None:
        self.done = done
        self.partly = partly
        self.make_room = make_room
        self.trusted = trusted
        self.holders = holders
        self.answers: dict[int, Staged] = {}
        self.missing: list[tuple[Wanted, Extent | None]] = []  # with the copy in a slower tier
        self.outdated: list[Extent] = []
        self.batch = Batch()
        self.risen: dict[int, Extent] = {}  # where files lay before they rose
        self.home = 0  # the tier whose index holds the claims
        self.has_claims = False
        self.is_held_up = False  # it was there at the last flush
        self.n_comparing = 0
        self.n_copying = 0
        self.n_jobs = 1  # until everything is claimed

    def take_batch(self) -> Batch:
        """Return what is to be published, and begin anew."""
        batch, self.batch = self.batch, Batch()
        return batch
