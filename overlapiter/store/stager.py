"""The stager: has the files of a part staged, through all tiers, each read of the source in a job.

For each part: look all files up; compare those that this run has not compared yet with their
sources; claim what is missing; copy; publish all copies in one transaction. What another process is
copying is waited for. No disk makes it raise: what cannot be staged is read from the source, and
the user is told why, once.
"""

from __future__ import annotations

import collections
import enum
import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from overlapiter.origins.origin import Origin, Original, OriginalFile

from .breaker import Breaker
from .extents import (
    WHOLE,
    Checksum,
    DamagedError,
    Extent,
    ExtentReader,
    checksum_of,
)
from .index import IndexBusyError
from .store import Found, Place, Store, Wanted

#: How a staged file is compared with its source before a run first uses it.
Validation = Literal["mtime", "checksum", "never"]
#: Frees at least so many bytes in a tier, if it can; says whether it did.
MakeRoom = Callable[[int, int], bool]

_CHUNK_BYTES = 256 << 10
#: A source that changed so lately may still be written, in pieces that no look at it can tell.
_SETTLING_NS = 2 * 10**9
#: How long the process that copies a file may go without writing a byte.
_PATIENCE_SECONDS = 5.0
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.002, 0.05
_REMEMBERED = 4096

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
#: Errors that say nothing about the disk.
_ABOUT_THE_FILE = {errno.EFBIG: "it is beyond the limit of file sizes, ulimit -f"}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


class Outcome(enum.Enum):
    """What became of a request to stage a file."""

    COPIED = "copied"
    FOUND = "found"  # staged before, and still valid
    REFUSED = "refused"  # no room
    TOO_LARGE = "too large"  # for all the room there is
    FAILED = "failed"  # the staging disk
    BUSY = "busy"  # another process keeps its claim, or the index, for too long
    SOURCE_FAILED = "source failed"  # missing or unreadable: the file reader will report it


class Staged(NamedTuple):
    """The answer for one file.

    Attributes:
        outcome: What became of it.
        extent: Where the copy is; None unless it may be read.
        is_settled: Whether the copy need not be compared again; not while the source is so new
            that it may still be written.
        read_ns: How long reading the source took, if it was read.
    """

    outcome: Outcome
    extent: Extent | None = None
    is_settled: bool = True
    read_ns: int = 0


#: Called with the answer for each key.
Done = Callable[[dict[int, Staged]], None]


class _Part:
    """The files of one request on their way; guarded by the lock of the stager."""

    __slots__ = ("answers", "copies", "done", "failed", "home", "is_held_up", "make_room",
                 "missing", "n_copying", "n_jobs", "outdated", "partly", "risen")  # fmt: skip

    def __init__(self, done: Done, make_room: MakeRoom | None, partly: Done | None = None) -> None:
        self.done = done
        self.partly = partly
        self.make_room = make_room
        self.answers: dict[int, Staged] = {}
        self.missing: list[tuple[Wanted, Extent | None]] = []  # with the copy in a slower tier
        self.outdated: list[Extent] = []
        self.copies: list[_Copy] = []
        self.failed: list[int] = []
        self.risen: list[Extent] = []
        self.home = 0  # the tier whose index holds the claims
        self.is_held_up = False  # it was there at the last flush
        self.n_copying = 0
        self.n_jobs = 0


class _Wait:
    """Files of a part that other processes copy.

    Attributes:
        part: The part.
        by_key: Its files that were to be claimed.
        owners: The keys of those to wait for, each with its owner.
        progress: What the owners have written, at the last look.
        deadline: Until then they may write nothing.
    """

    def __init__(
        self,
        part: _Part,
        by_key: Mapping[int, tuple[Wanted, Extent | None]],
        owners: dict[int, int],
    ) -> None:
        self.part, self.by_key, self.owners = part, by_key, owners
        self.progress: dict[int, tuple[int, int]] = {}
        self.deadline = 0.0
        self._pause_seconds = _FIRST_POLL_SECONDS

    def next_pause(self) -> float:
        """Return how long to wait before the next look, longer each time."""
        pause_seconds = self._pause_seconds
        self._pause_seconds = min(1.5 * pause_seconds, _LONGEST_POLL_SECONDS)
        return pause_seconds


class _Copy(NamedTuple):
    """A copy that is complete and not published."""

    wanted: Wanted
    tier: int
    place: Place
    answer: Staged


class Stager:
    """Stages files. Safe for threads.

    Args:
        stores: One for each tier, the fastest first.
        origin: Gives the source files.
        validate: ``"mtime"`` compares size and mtime of a staged file with those of its source
            before this run first uses it; ``"checksum"`` also reads the copy; ``"never"`` compares
            nothing.
        submit: Has a job done by another thread; jobs wait for the slow store.
        warn: Called with what the user should know. The text does not depend on the file.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        origin: Origin,
        validate: Validation,
        submit: Callable[[Callable[[], None]], None],
        warn: Callable[[str], None],
    ) -> None:
        self.stores = stores
        self._origin = origin
        self._validate = validate
        self._submit = submit
        self._warn = warn
        self._lock = threading.Lock()
        self._sick = [Breaker() for _ in stores]
        self._full = [Breaker() for _ in stores]
        self._reader = ExtentReader([store.site.directory for store in stores])
        self._reader_lock = threading.Lock()
        self._compared: collections.OrderedDict[int, Extent] = collections.OrderedDict()
        self._stuck: set[int] = set()  # keys whose owners write nothing: not waited for again
        self._mean_bytes = 0.0
        self._parts: dict[_Part, None] = {}  # that are not done
        self._reading: dict[int, None] = {}  # keys, in the order in which the source was asked

    def oldest_read(self) -> int | None:
        """Return the key of the file for which the source has been asked for the longest."""
        return next(iter([*self._reading]), None)

    # --- a part -------------------------------------------------------------------------------

    def stage(
        self,
        wanted: Sequence[Wanted],
        done: Done,
        make_room: MakeRoom | None = None,
        suspects: Iterable[int] = (),
        trusted: Mapping[int, Extent] = MappingProxyType({}),
        partly: Done | None = None,
    ) -> None:
        """Have files staged. Returns when all that waits for the slow store has become jobs.

        Args:
            wanted: The files; none of them twice. A single one takes no job if there is no
                ``partly``.
            done: Called when all of them are settled, here or in the thread of a job.
            make_room: Asked while a tier has no room; None if nothing can be evicted.
            suspects: Keys of those whose copies a file reader has found damaged.
            trusted: Copies that this run has compared with their sources already, by their keys.
            partly: Called by :meth:`flush` with the answers that there are before all are settled.
        """
        part = _Part(done, make_room, partly)
        self._parts[part] = None
        suspects = set(suspects)
        jobs: list[Callable[[], None]] = []
        found = self._look(wanted)
        for file in wanted:
            known = found.get(file.key)
            if known is None:
                part.missing.append((file, None))
            elif file.key not in suspects and self._needs_no_comparing(known, trusted):
                self._accept(part, file, known.extent)
            else:
                is_suspect = file.key in suspects
                jobs.append(functools.partial(self._compare, part, file, known, is_suspect))
        part.n_jobs = len(jobs)
        if not jobs:
            self._claim(part)
        for job in jobs[1:]:
            self._submit(job)
        if jobs:
            jobs[0]()

    def flush(self) -> None:
        """Publish what is copied of parts that something holds up, and give their answers.

        A part is held up that was there at the last flush, and is still.
        """
        for part in [*self._parts]:
            with self._lock:
                was_held_up, part.is_held_up = part.is_held_up, True
                if not was_held_up or not part.answers or part.partly is None:
                    continue
                copies, failed = part.copies, part.failed
                part.copies, part.failed = [], []
                is_publishing = bool(copies or failed)
                part.n_jobs += is_publishing  # so that it is not done before
            if is_publishing:
                self._publish(part, copies, failed)
            with self._lock:
                pending = {copy.wanted.key for copy in part.copies}
                answers = {k: answer for k, answer in part.answers.items() if k not in pending}
            part.partly(answers)
            if is_publishing:
                self._end_job(part)

    def _finish(self, part: _Part) -> None:
        if self._parts.pop(part, part) is None:  # else it has been done
            part.done(part.answers)

    def _look(self, wanted: Sequence[Wanted]) -> dict[int, Found]:
        """Return what is staged of some files, in the fastest tier that has each."""
        found: dict[int, Found] = {}
        for tier, store in enumerate(self.stores):
            left = [file for file in wanted if file.key not in found] if found else wanted
            if not left:
                break
            try:
                found |= store.look(left)
            except (OSError, IndexBusyError) as error:
                self._blame(tier, error)
        return found

    def _needs_no_comparing(self, found: Found, trusted: Mapping[int, Extent]) -> bool:
        key = found.extent.key
        if found.extent in (trusted.get(key), self._compared.get(key)):
            return True
        return self._validate == "never" and found.is_verified

    def _compare(self, part: _Part, file: Wanted, found: Found, is_suspect: bool) -> None:
        """Compare a copy with its source; the last comparison of a part goes on to claim."""
        extent = found.extent
        answer = None
        is_valid = True
        if self._validate != "never":
            self._reading[file.key] = None
            try:
                is_valid = self._origin.stat(file.path) == Original(extent.size, extent.mtime)
            except OSError:
                answer = Staged(Outcome.SOURCE_FAILED)
            finally:
                self._reading.pop(file.key, None)  # another part may have the same file
        needs_reading = self._validate == "checksum" or not found.is_verified or is_suspect
        if answer is None and is_valid and needs_reading:
            with self._reader_lock:
                if is_suspect:  # its segment may have been removed or replaced
                    self._reader.close()
                is_valid = self._reader.is_right(extent)
            if is_valid and not found.is_verified:
                self._note_verified(extent)
        with self._lock:
            if answer is not None:
                part.answers[file.key] = answer
            elif is_valid:
                self._accept(part, file, extent)
            else:
                part.outdated.append(extent)
                part.missing.append((file, None))
            part.n_jobs -= 1
            is_last = not part.n_jobs
        if is_last:
            self._claim(part)

    def _note_verified(self, extent: Extent) -> None:
        try:
            self.stores[extent.tier].note_verified([extent.key])
        except (OSError, IndexBusyError) as error:
            self._blame(extent.tier, error)

    def _accept(self, part: _Part, file: Wanted, extent: Extent) -> None:
        """Take a valid copy; one in a slower tier rises if a faster one may have room."""
        part.answers[file.key] = Staged(Outcome.FOUND, extent, has_settled(extent.mtime))
        self._remember(extent)
        if extent.tier and self._full[0].is_closed and self._sick[0].is_closed:
            part.missing.append((file, extent))

    def _remember(self, extent: Extent) -> None:
        if has_settled(extent.mtime):
            self._compared[extent.key] = extent
            if len(self._compared) > _REMEMBERED:
                self._compared.popitem(last=False)

    # --- claims -------------------------------------------------------------------------------

    def _claim(self, part: _Part) -> None:
        """Claim what is missing, and make a job of each copy."""
        if not part.missing:
            self._finish(part)
            return
        by_key = {file.key: (file, lower) for file, lower in part.missing}
        part.missing = []
        owners = self._begin(part, by_key)
        if owners:
            self._wait(_Wait(part, by_key, owners))

    def _begin(
        self, part: _Part, by_key: Mapping[int, tuple[Wanted, Extent | None]]
    ) -> dict[int, int]:
        """Claim files and begin to copy those that are this process's; return the others' ones.

        Each file that others are copying has its owner. The part has one more job if there are any.
        """
        claimed, answer = None, Staged(Outcome.FAILED)
        outdated, part.outdated = part.outdated, []
        files = [file for file, _ in by_key.values()]
        for tier, store in enumerate(self.stores):
            if not self._sick[tier].is_passable(time.monotonic()):
                continue
            try:
                here = [extent for extent in outdated if extent.tier == tier]
                if claimed is None:
                    claimed = store.claim(files, here, int(self._mean_bytes * len(files)))
                    part.home = tier
                elif here:
                    store.drop(here)
            except (OSError, IndexBusyError) as error:
                answer = self._blame(tier, error)
        if claimed is None:
            self._settle_unclaimed(part, files, answer)
            return {}
        with self._lock:
            for key, found in claimed.found.items():  # what has risen, too, lies there now
                is_settled = has_settled(found.extent.mtime)
                part.answers[key] = Staged(Outcome.FOUND, found.extent, is_settled)
            part.n_copying += len(claimed.mine)
            part.n_jobs += len(claimed.mine) + bool(claimed.others)
            is_done = not part.n_jobs
        if is_done:
            self._finish(part)
            return {}
        jobs = [functools.partial(self._copy, part, *by_key[key]) for key in claimed.mine]
        for job in jobs[1:]:
            self._submit(job)
        if jobs:
            jobs[0]()
        return claimed.others

    def _settle_unclaimed(self, part: _Part, files: Iterable[Wanted], answer: Staged) -> None:
        with self._lock:
            for file in files:
                part.answers.setdefault(file.key, answer)
            is_done = not part.n_jobs
        if is_done:
            self._finish(part)

    def _wait(self, wait: _Wait) -> None:
        """Look whether other processes have copied their files; copy those that they leave.

        As long as they have not, this is another job, which keeps no other one waiting.
        """
        part = wait.part
        while True:
            is_changed = None
            try:
                is_changed = self._is_changed(wait)
            except (OSError, IndexBusyError) as error:
                self._blame(part.home, error)
                is_changed = False
            if is_changed is None:
                time.sleep(wait.next_pause())
                if part.partly is not None:
                    self._submit(functools.partial(self._wait, wait))
                    return
            elif is_changed:
                self._stuck.difference_update(wait.owners)
                by_key = {key: wait.by_key[key] for key in wait.owners}
                owners = self._begin(part, by_key)
                if not owners:
                    break
                self._end_job(part)  # which has counted this wait once more
                wait = _Wait(part, by_key, owners)
            else:
                self._give_up_waiting(wait)
                break
        self._end_job(part)

    def _is_changed(self, wait: _Wait) -> bool | None:
        """Return whether a file is copied no more; None: not yet, False: all owners are stuck."""
        store, owners = self.stores[wait.part.home], wait.owners
        if len(store.being_copied([*owners])) < len(owners):
            return True
        progress = {owner: store.progress(owner) for owner in {*owners.values()}}
        if not all(map(store.is_copied, progress)):
            store.take_over()
            return True
        now_seconds = time.monotonic()
        if progress != wait.progress:
            wait.progress, wait.deadline = progress, now_seconds + _PATIENCE_SECONDS
        is_stuck = now_seconds >= wait.deadline or self._stuck.issuperset(owners)
        return False if is_stuck else None

    def _give_up_waiting(self, wait: _Wait) -> None:
        home = wait.part.home
        self._stuck.update(wait.owners)
        if self._sick[home].is_closed and self._full[home].is_closed:
            self._warn(self._busy_words(home))  # else it is known what is the matter
        with self._lock:
            for key in wait.owners:  # one that could only rise is good where it is
                wait.part.answers.setdefault(key, Staged(Outcome.BUSY))

    def _end_job(self, part: _Part) -> None:
        with self._lock:
            part.n_jobs -= 1
            is_done = not part.n_jobs
        if is_done:
            self._finish(part)

    # --- copies -------------------------------------------------------------------------------

    def _copy(self, part: _Part, file: Wanted, lower: Extent | None) -> None:
        """Copy a claimed file; the last copy of a part has all of them published."""
        if lower is None:
            self._reading[file.key] = None
            try:
                answer = self._copy_from_source(part, file)
            finally:
                self._reading.pop(file.key, None)
        else:
            self._rise(part, file, lower)
            answer = None
        with self._lock:
            if answer is not None:
                part.answers[file.key] = answer
                if answer.extent is None:
                    part.failed.append(file.key)
            part.n_copying -= 1
            copies, failed = part.copies, part.failed
            is_last = not part.n_copying
            if is_last:
                part.copies, part.failed = [], []
        if is_last:
            self._publish(part, copies, failed)
        self._end_job(part)

    def _copy_from_source(self, part: _Part, file: Wanted) -> Staged:
        if not self._has_room(part):
            return Staged(Outcome.REFUSED)
        began_ns = time.monotonic_ns()
        try:
            opened = self._origin.open(file.path)
        except (OSError, ValueError):  # no file can have a path with a null in it
            return Staged(Outcome.SOURCE_FAILED)
        with opened as source:
            try:
                original = source.stat()
            except OSError:
                return Staged(Outcome.SOURCE_FAILED)
            size = original.size_bytes
            if not size:  # empty, or of a kind that does not tell: read it there
                return Staged(Outcome.SOURCE_FAILED)
            answer = self._take_place(part, size)
            if isinstance(answer, Staged):
                return answer
            tier, place = answer
            try:
                copied = self._fill(file, tier, place, source, original)
            except OSError as error:
                self._give_up(tier, place)
                return self._blame(tier, error)
            if copied is None:
                self._give_up(tier, place)
                return Staged(Outcome.SOURCE_FAILED)
        # What the next files may take of a segment that they share.
        shared_bytes = 0 if place.start == WHOLE else place.size
        share = 0.1 if self._mean_bytes else 1.0
        self._mean_bytes += (shared_bytes - self._mean_bytes) * share
        staged = Staged(
            Outcome.COPIED,
            copied,
            has_settled(original.mtime_ns),
            time.monotonic_ns() - began_ns,
        )
        with self._lock:
            part.copies.append(_Copy(file, tier, place, staged))
        return staged

    def _has_room(self, part: _Part) -> bool:
        """Make room for a file of ordinary size: to open one in vain costs the slow store."""
        make_room, size_bytes = part.make_room, int(self._mean_bytes)
        if make_room is None or not size_bytes:
            return True
        try:
            for tier in range(part.home, len(self.stores)):
                while not self.stores[tier].has_room(size_bytes):
                    if not make_room(tier, size_bytes):
                        break
                else:
                    return True
        except (OSError, IndexBusyError):  # taking a place meets the same, and says it
            return True
        return False

    def _take_place(self, part: _Part, size_bytes: int) -> tuple[int, Place] | Staged:
        """Return the fastest tier that has room for a file, and the place; else why there is none.

        Of several reasons the first one counts, for it may pass.
        """
        reasons = []
        for tier in range(part.home, len(self.stores)):
            place = self._take_place_in(part, tier, size_bytes)
            if not isinstance(place, Staged):
                return tier, place
            reasons.append(place)
        order = (Outcome.REFUSED, Outcome.FAILED, Outcome.BUSY, Outcome.TOO_LARGE)
        return min(reasons, key=lambda reason: order.index(reason.outcome))

    def _take_place_in(self, part: _Part, tier: int, size_bytes: int) -> Place | Staged:
        store, make_room = self.stores[tier], part.make_room
        now_seconds = time.monotonic()
        # Where the claims lie, one request has passed for the whole part.
        if tier != part.home and not self._sick[tier].is_passable(now_seconds):
            return Staged(Outcome.FAILED)
        if make_room is None and not self._full[tier].is_passable(now_seconds):
            return Staged(Outcome.REFUSED)
        try:
            while (place := store.place(size_bytes)) is None:
                if not store.can_ever_hold(size_bytes):
                    self._warn(
                        f"a file is larger than all the room in {store.site.directory} and is read "
                        f"from the source; raise Staging.capacity, or lower keep_free"
                    )
                    return Staged(Outcome.TOO_LARGE)
                if make_room is None or not make_room(tier, size_bytes):
                    self._full[tier].failed(now_seconds)
                    return Staged(Outcome.REFUSED)
        except (OSError, IndexBusyError) as error:
            return self._blame(tier, error)
        self._full[tier].succeeded()
        return place

    def _fill(
        self, file: Wanted, tier: int, place: Place, source: OriginalFile, original: Original
    ) -> Extent | None:
        """Copy a source file to its place; None if the source fails, or is being written.

        Raises:
            OSError: The staging disk failed.
        """
        size, mtime = original
        checksum = Checksum(file.key, size, mtime) if size > _CHUNK_BYTES else None
        value = position = 0
        start = max(place.start, 0)
        while position < size:
            try:
                piece = source.read(min(_CHUNK_BYTES, size - position))
            except OSError:
                return None
            if not piece:
                return None
            if checksum is not None:
                checksum.update(piece)
            elif len(piece) == size:
                value = checksum_of(piece, file.key, mtime)
            else:  # in several pieces, small as it is
                checksum = Checksum(file.key, size, mtime)
                checksum.update(piece)
            _write(place.segment.fd, piece, start + position)
            position += len(piece)
        try:
            if source.stat() != original:
                return None  # it is being written: not ours to keep
        except OSError:
            return None
        if checksum is not None:
            value = checksum.value()
        return Extent(file.key, tier, place.segment.number, place.start, size, mtime, value)

    def _rise(self, part: _Part, file: Wanted, lower: Extent) -> None:
        """Copy a file from a slower tier to the one that holds its claim, if that has room."""
        copied = None if part.home else self._move(file, lower, 0, None)
        with self._lock:
            if copied is None:
                part.failed.append(file.key)
            else:
                part.copies.append(copied)
                part.risen.append(lower)

    def _move(
        self, file: Wanted, extent: Extent, tier: int, make_room: MakeRoom | None
    ) -> _Copy | None:
        """Copy a staged file to another tier; None if there is no room, or it is damaged."""
        part = _Part(lambda _answers: None, make_room)
        part.home = -1  # there are no claims
        place = self._take_place_in(part, tier, extent.size)
        if isinstance(place, Staged):
            return None
        try:
            self._fill_from(extent, place)
        except DamagedError:
            self._give_up(tier, place)
            return None
        except OSError as error:
            self._give_up(tier, place)
            self._blame(tier, error)
            return None
        moved = extent._replace(tier=tier, segment=place.segment.number, start=place.start)
        settled = has_settled(extent.mtime)
        return _Copy(file, tier, place, Staged(Outcome.FOUND, moved, settled))

    def _fill_from(self, extent: Extent, place: Place) -> None:
        if not extent.is_whole:
            with self._reader_lock:
                data = self._reader.read(extent)
            _write(place.segment.fd, data, max(place.start, 0))
            return
        with self._reader_lock:
            path = self._reader.path_of(extent)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            position = max(place.start, 0)
            while piece := os.read(fd, _CHUNK_BYTES):
                _write(place.segment.fd, piece, position)
                position += len(piece)
        finally:
            os.close(fd)

    def _give_up(self, tier: int, place: Place) -> None:
        try:
            self.stores[tier].give_up(place)
        except (OSError, IndexBusyError) as error:
            self._blame(tier, error)

    def _publish(self, part: _Part, copies: list[_Copy], failed: list[int]) -> None:
        """Make all copies of a part known, a transaction for each tier; the claims end last."""
        for tier, store in reversed([*enumerate(self.stores)]):
            here = [copy for copy in copies if copy.tier == tier]
            ended = failed if tier == part.home else []
            if tier == part.home:  # the claims lie there, wherever the bytes are
                ended = ended + [copy.wanted.key for copy in copies if copy.tier != tier]
            if not here and not ended:
                continue
            try:
                store.publish([(c.wanted, c.place, _extent(c.answer)) for c in here], ended)
            except (OSError, IndexBusyError) as error:
                answer = self._blame(tier, error)
                with self._lock:
                    part.answers.update({c.wanted.key: answer for c in here})
                continue
            self._sick[tier].succeeded()
            with self._lock:
                for copy in here:
                    part.answers[copy.wanted.key] = copy.answer
                    self._remember(_extent(copy.answer))
        for extent in part.risen:
            if part.answers[extent.key].extent != extent:
                self._drop(extent)
        part.risen = []

    def _drop(self, extent: Extent) -> None:
        try:
            self.stores[extent.tier].drop([extent])
        except (OSError, IndexBusyError) as error:
            self._blame(extent.tier, error)

    # --- evicting -----------------------------------------------------------------------------

    def evict(
        self, files: Sequence[Wanted], tier: int, make_room: MakeRoom | None
    ) -> dict[int, Extent | None]:
        """Have files sink from a tier to the next one that takes them, or go for good.

        Returns:
            For each key that was staged in the tier: where it is now; None if it is gone.

        Raises:
            OSError: The disk of the tier failed.
            IndexBusyError: Another process keeps its index locked.
        """
        store = self.stores[tier]
        if tier + 1 == len(self.stores):
            return dict.fromkeys(store.evict([file.key for file in files]))
        found = store.look(files)
        lower_room = make_room
        copies: list[_Copy] = []
        for file in files:
            if file.key in found:
                copies += self._sunk(file, found[file.key].extent, lower_room)
        part = _Part(lambda _answers: None, make_room)
        part.home = -1  # there are no claims
        self._publish(part, copies, [])
        store.evict(list(found))
        moved = {key: answer.extent for key, answer in part.answers.items()}
        return {key: moved.get(key) for key in found}

    def _sunk(self, file: Wanted, extent: Extent, make_room: MakeRoom | None) -> list[_Copy]:
        for tier in range(extent.tier + 1, len(self.stores)):
            copied = self._move(file, extent, tier, make_room)
            if copied is not None:
                return [copied]
        return []

    # --- what goes wrong ----------------------------------------------------------------------

    def _blame(self, tier: int, error: OSError | IndexBusyError) -> Staged:
        """Return the answer for a file at which a tier failed, and tell the user why."""
        directory = self.stores[tier].site.directory
        if isinstance(error, IndexBusyError):
            self._warn(self._busy_words(tier))
            return Staged(Outcome.BUSY)
        if error.errno in _ABOUT_THE_FILE:
            self._warn(
                f"a file cannot be staged in {directory} ({error.strerror}) and is read from the "
                f"source: {_ABOUT_THE_FILE[error.errno]}"
            )
            return Staged(Outcome.FAILED)
        if error.errno in _NO_SPACE:  # for the index: as if there were none for the file
            self._full[tier].failed(time.monotonic())
            return Staged(Outcome.REFUSED)
        self._sick[tier].failed(time.monotonic())
        advice = "see whether that disk is broken"
        if error.errno in _NO_DESCRIPTOR:
            advice = "raise the limit of open files (ulimit -n), or lower reads_in_flight"
        self._warn(
            f"staging in {directory} failed ({error.strerror or error}): files are read from the "
            f"source, and staging is tried again by itself; {advice}"
        )
        return Staged(Outcome.FAILED)

    def _busy_words(self, tier: int) -> str:
        return (
            f"some files of {self.stores[tier].site.directory} are read from the source: another "
            f"process keeps them claimed and writes nothing, or keeps the index locked; if that "
            f"goes on, see whether the slow store stalls, or a job here was stopped or hangs"
        )

    def close(self) -> None:
        """Close the segments that are open for reading, and the stores."""
        with self._reader_lock:
            self._reader.close()
        for store in self.stores:
            store.close()


def has_settled(mtime_ns: int) -> bool:
    """Return whether a source file has not changed lately, nor seems to in the future."""
    return abs(time.time_ns() - mtime_ns) > _SETTLING_NS


def _extent(answer: Staged) -> Extent:
    assert answer.extent is not None
    return answer.extent


def _write(fd: int, data: bytes, start: int) -> None:
    written_bytes = os.pwrite(fd, data, start)
    while written_bytes < len(data):
        written_bytes += os.pwrite(fd, memoryview(data)[written_bytes:], start + written_bytes)
