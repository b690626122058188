"""The stager: has the files of a part staged, through all tiers, each read of the source in a job.

For each part: look all files up; compare those that this run has not compared yet with their
sources; claim what is missing; copy; publish the copies together; have what lies in slower tiers
rise. What another process is copying is waited for. No disk makes it raise: what cannot be staged
is read from the source, and the user is told why, once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from overlapiter.origins.bulk import Bulk, BulkRead
from overlapiter.origins.origin import Origin, Original

from .comparer import Comparer, Validation
from .copier import Content, Copier, Room
from .elsewhere import FetchedFile, Fetches, Holders, fetch_at_once, name_of
from .extents import Extent
from .mover import Mover
from .outcome import Done, MakeRoom, NoteAnswers, Outcome, Staged
from .part import Batch, Part
from .slowstore import Read, SlowStore
from .store import Found, Store, Wanted
from .tiers import Copy, Tiers
from .waiting import Progress, Wait

#: For so many files room is made together, and they are read in bulk: 8 MiB at most.
_AT_ONCE = 32

#: What a thread is to do.
Job = Callable[[], None]


def _at_once(job: Job) -> None:
    job()


class _Comparison(NamedTuple):
    """A copy that is to be compared with its source."""

    part: Part
    file: Wanted
    found: Found
    is_suspect: bool


class _Reading(NamedTuple):
    """A claimed file that is to be read."""

    part: Part
    file: Wanted


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
        note_answers: Called with all answers of the source.
        peers: Fetches files from other nodes; None if there are none.
        bulk: Reads small files without jobs; what it has read is to be brought to
            :meth:`take_read`. None if each file is to be a job.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        origin: Origin,
        validate: Validation,
        submit: Callable[[Job], None],
        warn: Callable[[str], None],
        note_answers: NoteAnswers = lambda _what, _answers: None,
        peers: Fetches | None = None,
        bulk: Bulk | None = None,
    ) -> None:
        self.stores = stores
        self._submit = submit
        self._note_answers = note_answers
        self._peers = peers
        self._lock = threading.Lock()
        self._tiers = Tiers(stores, warn)
        self._slow_store = SlowStore(origin, note_answers, bulk)
        self._copier = Copier(self._tiers, self._slow_store)
        self._mover = Mover(self._tiers, self._copier)
        self._comparer = Comparer(validate, self._mover)
        self._stuck: dict[int, Progress] = {}  # owners that write nothing
        self._parts: dict[Part, None] = {}  # that are not done

    def oldest_read(self) -> int | None:
        """Return the key of the file for which the source has been asked for the longest."""
        return self._slow_store.oldest()

    # --- a part -------------------------------------------------------------------------------

    def stage(
        self,
        wanted: Sequence[Wanted],
        done: Done,
        make_room: MakeRoom | None = None,
        suspects: Iterable[int] = (),
        trusted: Mapping[int, Extent] = MappingProxyType({}),
        partly: Done | None = None,
        holders: Mapping[int, Holders] = MappingProxyType({}),
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
            holders: Which other nodes may hold the files, by their keys.
        """
        part = Part(done, make_room, partly, trusted, holders)
        self._parts[part] = None
        suspects = set(suspects)
        comparisons: list[_Comparison] = []
        found = self._tiers.look(wanted, part.unseen)
        for file in wanted:
            known = found.get(file.key)
            if known is None:
                part.missing.append(file)
            elif file.key not in suspects and self._comparer.has_compared(known, trusted):
                self._accept(part, file, known.extent)
            else:
                comparisons.append(_Comparison(part, file, known, file.key in suspects))
        part.n_comparing = len(comparisons)
        if not comparisons:
            self._claim(part, part.missing)
        elif self._comparer.asks:
            self._do(self._ask(part, comparisons, only_look=True))
        else:
            self._do(
                [functools.partial(self._settle, each, None, _at_once) for each in comparisons]
            )

    def _ask(
        self, part: Part, asked: Sequence[_Comparison | _Reading], *, only_look: bool
    ) -> list[Job]:
        """Have the source asked in bulk, or return jobs that ask it.

        That takes jobs if the caller waits for a part: then no other thread brings the answers.
        """
        in_bulk = ((each.file, each) for each in asked)
        if part.partly and self._slow_store.ask_in_bulk(in_bulk, only_look=only_look):
            return []

        def ask(each: _Comparison | _Reading) -> None:
            self._take([(each, self._slow_store.ask(each.file, only_look=only_look))], _at_once)

        return [functools.partial(ask, each) for each in asked]

    def take_read(self, reads: Iterable[BulkRead]) -> None:
        """Take what was read, and looked at, in bulk."""
        self._take(self._slow_store.taken(reads), self._submit)

    def _take(
        self,
        came: Sequence[tuple[_Comparison | _Reading, Read]],
        do: Callable[[Job], None],
    ) -> None:
        """Take what the source has answered; ``do`` has done what waits for a disk."""
        small: dict[Part, dict[Wanted, Content | Copy | Staged]] = {}
        for asked, read in came:
            if isinstance(asked, _Comparison):
                self._take_look(asked, read, do)
            elif read.large is not None:
                do(functools.partial(self._copy, asked, read))
            else:
                part, file = asked
                got = self._copier.take(read, file, part.home)
                small.setdefault(part, {})[file] = got
        for part, copied in small.items():
            self._end_copies(part, copied, do)

    def _do(self, jobs: Sequence[Job]) -> None:
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
                if not was_held_up or part.partly is None:
                    continue
                batch = part.take_batch()
            self._publish(part, batch)
            with self._lock:
                answers = dict(part.answers)
            part.partly(answers)
            self._end_job(part)

    def _end_job(self, part: Part) -> None:
        """End a job of a part; after the last one what lies in slower tiers rises."""
        with self._lock:
            part.n_jobs -= 1
            if part.n_jobs or part.n_copying:
                return
            low, part.low = part.low, {}
            part.n_jobs += bool(low)
        if low:
            lift = functools.partial(self._lift, part, low)
            # Not here: this may be flush, in the thread that hears the supervisor.
            lift() if part.partly is None else self._submit(lift)
        elif self._parts.pop(part, part) is None:  # else it has been done
            part.done(part.answers)

    # --- what is there ------------------------------------------------------------------------

    def _take_look(self, asked: _Comparison, read: Read, do: Callable[[Job], None]) -> None:
        original: Original | Staged = read.original
        if read.error:
            original = self._tiers.blame_source(asked.found.extent.tier, read.error)
        if self._comparer.has_to_read(asked.found, asked.is_suspect):
            do(functools.partial(self._settle, asked, original, _at_once))
        else:
            self._settle(asked, original, do)

    def _settle(
        self, comparison: _Comparison, original: Original | Staged | None, do: Callable[[Job], None]
    ) -> None:
        """Take what a source is now; the last comparison of a part goes on to claim."""
        part, file, found, is_suspect = comparison
        is_right = not isinstance(original, Staged) and self._comparer.is_right(
            found, original, is_suspect
        )
        with self._lock:
            if isinstance(original, Staged):
                part.answers[file.key] = original
            elif is_right:
                self._accept(part, file, found.extent)
                if not found.is_verified:
                    part.verified.append(found.extent)
            else:
                part.outdated.append(found.extent)
                part.missing.append(file)
            part.n_comparing -= 1
            is_last = not part.n_comparing
        if is_last:
            do(functools.partial(self._claim, part, part.missing))

    def _accept(self, part: Part, file: Wanted, extent: Extent) -> None:
        """Take a valid copy; one in a slower tier is to rise if the fastest one may have room."""
        part.answers[file.key] = answer = Staged.at(extent)
        self._comparer.remember(answer)
        if extent.tier and 0 not in part.unseen and self._tiers.is_well(0):
            part.low[file] = extent

    # --- claims -------------------------------------------------------------------------------

    def _claim(self, part: Part, files: Sequence[Wanted]) -> None:
        """Claim what is missing, and make a job of each copy; ends a job."""
        verified, part.verified = part.verified, []
        self._tiers.note_verified(verified)
        owners = self._begin(part, files) if files else {}
        if owners:  # the job goes on
            self._wait(part, Wait(self.stores[part.home], owners, self._stuck))
        else:
            self._end_job(part)

    def _begin(self, part: Part, files: Sequence[Wanted]) -> dict[Wanted, int]:
        """Claim and copy files; return those that other processes copy, each with its owner."""
        outdated, part.outdated = part.outdated, []
        home = part.home if part.has_claims else None
        got = self._tiers.claim(files, outdated, part.unseen, home)
        if isinstance(got, Staged):
            with self._lock:
                part.answers = {file.key: got for file in files} | part.answers
            return {}
        (claimed, part.home), part.has_claims = got, True
        by_key = {file.key: file for file in files}
        mine = [by_key[key] for key in claimed.mine]
        meanwhile = self._staged_meanwhile(part, mine, outdated)
        with self._lock:
            for key, found in claimed.found.items():  # what has risen, too, lies there now
                part.answers[key] = Staged.at(found.extent)
            part.n_copying += len(mine)
        for file, extent in meanwhile.items():
            self._end_copy(part, file, Staged.at(extent))
        left = [f for f in mine if f not in meanwhile and not self._fetch(part, f)]
        jobs: list[Job] = []
        for first in range(0, len(left), _AT_ONCE):
            jobs += self._read(part, left[first : first + _AT_ONCE])
        self._do(jobs)
        return {by_key[key]: owner for key, owner in claimed.others.items()}

    def _staged_meanwhile(
        self, part: Part, claimed: Sequence[Wanted], outdated: Sequence[Extent]
    ) -> dict[Wanted, Extent]:
        """Return what was staged in other tiers between look and claim: claims do not tell.

        Of a file with an outdated copy another one lay there before, where a process was killed
        that moved it. It has not been compared, and is dropped.
        """
        if len(self.stores) == 1 or not claimed:
            return {}
        found = self._tiers.look(claimed, part.unseen)
        changed = found.keys() & {extent.key for extent in outdated}
        self._tiers.drop([found.pop(key).extent for key in changed])
        return {file: found[file.key].extent for file in claimed if file.key in found}

    def _wait(self, part: Part, wait: Wait) -> None:
        """Wait for the files that other processes copy, and claim what they leave; ends a job."""
        try:
            while not wait.is_over():
                self._note_answers("wait", [("", int(wait.pause() * 1e9), 0)])
                if part.partly is not None:
                    self._submit(functools.partial(self._wait, part, wait))
                    return
        except OSError as error:
            if not isinstance(error, TimeoutError):
                self._tiers.blame(part.home, error)
            elif self._tiers.is_well(part.home):  # else it is known what is the matter
                self._tiers.say_busy(part.home)
            with self._lock:
                for file in wait.owners:  # one that could only rise is good where it is
                    part.answers.setdefault(file.key, Staged(Outcome.BUSY))
            self._end_job(part)
        else:
            self._claim(part, [*wait.owners])

    # --- copies -------------------------------------------------------------------------------

    def _read(self, part: Part, files: Sequence[Wanted]) -> list[Job]:
        """Have claimed files read in bulk, as far as there is room, or return jobs that do."""
        n_read = self._copier.n_to_read(len(files), self._room(part))
        refused = files[n_read:]
        readings = [_Reading(part, file) for file in files[:n_read]]
        if refused:
            self._end_copies(part, dict.fromkeys(refused, Staged(Outcome.REFUSED)), _at_once)
        return self._ask(part, readings, only_look=False)

    def _room(self, part: Part) -> Room:
        return Room(range(part.home, len(self.stores)), part.make_room, part.home)

    def _copy(self, reading: _Reading, read: Read) -> None:
        """Copy a large file, which is open."""
        part, file = reading
        self._end_copy(part, file, self._copier.copy(read, file, self._room(part)))

    def _end_copy(self, part: Part, file: Wanted, got: Content | Copy | Staged) -> None:
        self._end_copies(part, {file: got}, _at_once)

    def _end_copies(
        self,
        part: Part,
        copied: Mapping[Wanted, Content | Copy | Staged],
        do: Callable[[Job], None],
    ) -> None:
        """Take what has become of claimed files; after the last one of a part, publish all."""
        with self._lock:
            batch = part.batch_with(copied)
        if batch is not None:
            do(functools.partial(self._end_batch, part, batch))

    def _end_batch(self, part: Part, batch: Batch) -> None:
        self._publish(part, batch)
        self._end_job(part)

    # --- from other nodes ---------------------------------------------------------------------

    def _fetch(self, part: Part, file: Wanted) -> bool:
        """Have a claimed file fetched; return False if it is to be copied from the source."""
        holders = part.holders.get(file.key)
        if self._peers is None or holders is None:
            return False
        name = name_of(file.path, self.stores[0].source)
        if name is None:
            return False
        take = functools.partial(self._take_fetched, part, file)
        if part.partly is None:  # the caller waits, and no job may: see stage
            return fetch_at_once(self._peers, name, holders, take)
        self._peers.fetch(name, holders, take)
        return True

    def _take_fetched(self, part: Part, file: Wanted, sent: FetchedFile | None) -> bool:
        """Take a file from another node; copy it from the source if no node has it."""
        if sent is None:
            self._submit(functools.partial(self._read_alone, part, file))
            return True
        known, original = part.trusted.get(file.key), sent.stat()
        given = (*original, sent.checksum)
        if known is not None and given != (known.size, known.mtime, known.checksum):
            return False
        got = self._copier.receive(file, sent, self._room(part))
        if got is None:
            return False
        is_compared = known is not None or sent.is_fresh or not self._comparer.asks
        if is_compared or isinstance(got, Staged):  # there was no room for it
            self._end_copy(part, file, got)
        else:  # other files come behind this one
            do = _at_once if part.partly is None else self._submit
            do(functools.partial(self._compare_fetched, part, file, got, original))
        return True

    def _compare_fetched(
        self, part: Part, file: Wanted, got: Content | Copy, original: Original
    ) -> None:
        """Use a file that this job has not compared with its source yet only if it is the same."""
        seen = self._slow_store.ask(file, only_look=True)
        if seen.error is None and seen.original == original:
            self._end_copy(part, file, got)
            return
        if isinstance(got, Copy):
            self._tiers.give_up(got.extent.tier, got.place)
        self._read_alone(part, file)

    def _read_alone(self, part: Part, file: Wanted) -> None:
        """Read a file from the source, since no node has it."""
        self._do(self._read(part, [file]))

    # --- what is copied -----------------------------------------------------------------------

    def _publish(self, part: Part, batch: Batch) -> None:
        """Write what was read, and make all copies known."""
        contents = [got for got in batch.values() if isinstance(got, Content)]
        copies, reasons = self._copier.write(contents, self._room(part))
        copies += [got for got in batch.values() if isinstance(got, Copy)]
        failed = [key for key, got in batch.items() if isinstance(got, Staged)] + [*reasons]
        self._note(part, reasons | self._tiers.publish(copies, failed, part.home))

    def _note(self, part: Part, answers: Mapping[int, Staged]) -> None:
        with self._lock:
            for answer in answers.values():
                self._comparer.remember(answer)
            part.answers |= answers

    # --- between tiers ------------------------------------------------------------------------

    def _lift(self, part: Part, low: Mapping[Wanted, Extent]) -> None:
        """Have copies in slower tiers rise; what others have rise is waited for. Ends a job."""
        risen, others = self._mover.lift(low)
        self._note(part, risen)
        self._claim(part, others)

    def evict(
        self, keys: Sequence[int], tier: int, make_room: MakeRoom | None
    ) -> dict[int, Extent | None]:
        """Have files sink from a tier to the next one that takes them, or go for good.

        Returns:
            For each key that was staged in the tier: where it is now; None if it is gone.

        Raises:
            OSError: The disk of the tier failed, or its index is locked.
        """
        moved = self._mover.evict(keys, tier, make_room)
        with self._lock:
            for answer in filter(None, moved.values()):
                self._comparer.remember(answer)
        return {key: answer and answer.extent for key, answer in moved.items()}

    def close_segments(self) -> None:
        """Close the segments that are open for reading, so that the disk has back removed ones."""
        self._mover.close()

    def close(self, *, is_last: bool = False) -> None:
        """Close the segments that are open for reading, and the stores; see :meth:`.Store.close`.

        Before the last close, what is read of parts that are not done is published, if there is
        room for it.
        """
        for part in [*self._parts] if is_last else ():
            with self._lock:
                part.make_room, batch = None, part.take_batch()  # so it is not done any more
            self._publish(part, batch)
        self._mover.close()
        for store in self.stores:
            store.close(is_last=is_last)
