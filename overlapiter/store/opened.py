"""What a process has open of a store: the index of a generation, and the segments it appends to.

A segment is charged before the disk sets the blocks aside, and its charge is lowered after the
blocks were given back; so the total is never below what lies on the disk. What a transaction could
not write, because the index was locked, is owed: the next one writes it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from . import boot, segments
from .extents import SMALL_BYTES, WHOLE
from .generation import can_punch, index_path, make_reserve, segments_of, use_reserve
from .index import Cursor, Index, IndexDamagedError, Patience, StaleError
from .limits import INDEX_SHARE, Limits
from .places import Place, Vacant
from .segments import Segment, aligned
from .site import Site
from .tables import Evicted, delete_empty, lower, run_by_key

ResultT = TypeVar("ResultT")

_RESERVE_BYTES = 1 << 20
#: How long the end waits for small files that are being written.
_PATIENCE_SECONDS = 0.2


class OpenGeneration:
    """A generation that this process has open. Safe for threads.

    ``introduce`` notes the run, in the transaction that makes this process known; ``patience`` says
    for how long to wait for reading and for writing.

    Attributes:
        folder: The folder of its segments.
        lock: Of all that is not in the index.
        owner: The segment by which this process is known, and its claims are.
        block_bytes: Every place has a multiple of this size.
        can_punch: Whether holes give space back; else every file has a segment of its own.
        boots: How often the node was booted since the generation was made.
        unfinished: What was evicted, and could not be given back or noted yet.
        vacant: What was evicted, and is kept to be written to again.

    Raises as :class:`.Index`.
    """

    def __init__(
        self,
        path: str,
        site: Site,
        run: int,
        introduce: Callable[[Cursor], None],
        patience: tuple[Patience, Patience],
    ) -> None:
        self.path = path
        self.folder = segments_of(path)
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self.unfinished: list[Evicted] = []
        self.vacant = Vacant(self.lock, self.folder)
        self._run = run
        self._owed: list[Callable[[Cursor], object]] = []  # for the next transaction to write
        self._n_owing = 0  # transactions under way that write what was owed
        self._is_left = self._was_gone = False
        self.limits = Limits(site, self.folder)
        self.block_bytes = self.limits.block_bytes
        self._with_reserve(lambda: self._open(introduce, patience))
        self._make_reserve()

    def _with_reserve(self, action: Callable[[], ResultT]) -> ResultT:
        """Return what ``action`` returns; on a full disk, done anew in the place of the reserve."""
        try:
            return action()
        except OSError as error:
            if not segments.is_full(error) or not use_reserve(self.path):
                raise
            return action()

    def _make_reserve(self) -> None:
        make_reserve(self.path, min(_RESERVE_BYTES, self.limits.disk_bytes // INDEX_SHARE))

    def _open(
        self, introduce: Callable[[Cursor], None], patience: tuple[Patience, Patience]
    ) -> None:
        self.can_punch = can_punch(self.path)
        self.index = Index(index_path(self.path), *patience)
        with contextlib.ExitStack() as failed:
            failed.callback(self.index.close)
            note_boot = boot.check(self.index, self.block_bytes, self.limits.disk_bytes)
            self.owner = self._segment = Segment(self.folder, self.block_bytes)
            failed.callback(self.owner.remove)
            self._own = {self.owner.number: self.owner}

            def enter(cursor: Cursor) -> int:
                boots = note_boot(cursor)
                self._insert_segment(cursor, self.owner.number)
                total = "(SELECT SUM(charged) FROM segment)"
                cursor.execute(f"UPDATE fact SET value={total} WHERE name='total'")
                introduce(cursor)
                return boots

            self.boots = self.index.write(enter)
            failed.pop_all()

    def is_gone(self) -> bool:
        """Return whether it was thrown away, or `rm` has removed the index or the segments."""
        try:
            return not (self.index.is_current() and os.path.isdir(self.folder))
        except OSError:  # a disk that is sick does not tell
            return False

    # --- transactions -------------------------------------------------------------------------

    def write(self, work: Callable[[Cursor], ResultT], ended: Sequence[int] = ()) -> ResultT:
        """Return what a transaction returns that also writes what is owed.

        However it goes, this process does not copy the files any more whose keys have ``ended``.
        Raises as :meth:`.Index.write`.
        """
        with self.lock:
            owed, self._owed = self._owed, []
            is_owing = bool(owed)
            self._n_owing += is_owing
        if ended:
            statement = f"DELETE FROM copying WHERE owner={self.owner.number} AND key IN"
            owed.append(lambda cursor: run_by_key(cursor, statement, ended))

        def all_work(cursor: Cursor) -> ResultT:
            for each in owed:
                each(cursor)
            return work(cursor)

        try:
            return self._with_reserve(lambda: self.index.write(all_work))
        except BaseException:
            with self.lock:
                self._owed += owed
            raise
        finally:
            if is_owing:
                with self.lock:
                    self._n_owing -= 1
                    self._settled.notify_all()

    def _owe_lower(self, segment: int, size_bytes: int) -> None:
        """Lower the charge of a segment by what was given back, or never allocated."""
        lowered = {segment: size_bytes}
        self._owed.append(lambda cursor: lower(cursor, lowered, self.owner.number))

    @property
    def spare_bytes(self) -> int:
        """What is reserved or vacant, and not given."""
        return self._segment.surplus_bytes + self.vacant.size_bytes

    # --- places -------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._is_left:
            raise StaleError(f"{self.path} is not in use any more")

    def places(self, sizes_bytes: Sequence[int]) -> list[Place]:
        """Return where to write the first ones of some files, as far as there is room now.

        Raises:
            OSError: The disk failed; EFBIG: the file is beyond the limit of file sizes.
        """
        small = itertools.takewhile(lambda n: n <= SMALL_BYTES and self.can_punch, sizes_bytes)
        charges = [aligned(size_bytes, self.block_bytes) for size_bytes in small]
        with self.lock:
            self._require_open()
            if charges:
                places = self._shared_places(charges)
            else:
                charged_bytes = aligned(sizes_bytes[0], self.block_bytes)
                whole = self._new_whole(charged_bytes)
                places = [] if whole is None else [Place(self.give_up, whole, WHOLE, charged_bytes)]
            for place in places:
                place.segment.n_pending += 1
        return places

    def _shared_places(self, charges: Sequence[int]) -> list[Place]:
        segment = self._current(charges[0])
        if segment.is_removed:  # no other process could read what is written to it
            raise StaleError(f"segment {segment.number:x} was removed")
        spare_bytes = self.spare_bytes
        wanted_bytes = min(sum(charges) - spare_bytes, segment.room_bytes)
        if wanted_bytes > 0 and self._reserve(segment, wanted_bytes, charges[0] - spare_bytes):
            spare_bytes = self.spare_bytes
        places = []
        for charged_bytes in charges:
            if charged_bytes > spare_bytes:
                break
            place = self._vacant_place(charged_bytes) if self.vacant.size_bytes else None
            if place is None:
                if charged_bytes > segment.surplus_bytes:
                    break  # what is vacant has other sizes
                place = Place(self.give_up, segment, segment.take(charged_bytes), charged_bytes)
            places.append(place)
            spare_bytes -= charged_bytes
        return places

    def has_vacant_for(self, size_bytes: int) -> bool:
        """Return whether what is vacant makes room for a file once it is given back."""
        if size_bytes > SMALL_BYTES:  # it may also take what no segment is charged for
            return self.vacant.size_bytes > 0
        charged_bytes = aligned(size_bytes, self.block_bytes)
        return self.vacant.size_bytes > 0 and self.spare_bytes >= charged_bytes

    def _vacant_place(self, charged_bytes: int) -> Place | None:
        """Return a vacant place of exactly this size, if there is one."""
        while place := self.vacant.take(charged_bytes):
            number, start, size_bytes = place
            try:
                return Place(self.give_up, self.vacant.borrow(number), start, size_bytes)
            except OSError:
                self.unfinished.append(place)
        return None

    def _current(self, size_bytes: int) -> Segment:
        """Return the segment to append to; the one before is closed when nothing is pending."""
        if not self._segment.can_take(size_bytes):
            segment = self._new_segment(0)
            assert segment is not None  # nothing was to be charged
            self._segment = segment
            if not segment.can_take(size_bytes):
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return self._segment

    def _new_whole(self, charged_bytes: int) -> Segment | None:
        """Make the segment of a large file; what was reserved for small ones makes room for it."""
        whole = self._new_segment(charged_bytes)
        if whole is None and self.spare_bytes > 0:
            self._cut_reservation()
            whole = self._new_segment(charged_bytes)
        return whole

    def _new_segment(self, charged_bytes: int) -> Segment | None:
        """Make a segment that is charged for so many bytes; None if there is no room for them."""
        try:
            segment = Segment(self.folder, self.block_bytes)
        except OSError as error:
            if charged_bytes and error.errno in segments.NO_ROOM:
                return None  # to evict a large file gives back an inode, too
            raise

        def work(cursor: Cursor) -> bool:
            self._insert_segment(cursor, segment.number)
            if not charged_bytes or self._charge(cursor, segment, charged_bytes, charged_bytes):
                return True
            cursor.execute("DELETE FROM segment WHERE id=?", (segment.number,))
            return False

        with contextlib.ExitStack() as failed:
            failed.callback(segment.remove)
            if not self.write(work):
                return None
            failed.pop_all()
        self._own[segment.number] = segment
        if charged_bytes and not self._extend(segment, charged_bytes):
            self._close([segment])
            return None
        return segment

    def _insert_segment(self, cursor: Cursor, number: int) -> None:
        row = number, self._run, self.owner.number
        cursor.execute("INSERT INTO segment VALUES (?, 0, 0, ?, ?)", row)

    def _reserve(self, segment: Segment, wanted_bytes: int, least_bytes: int) -> bool:
        """Extend the reservation of a segment by what is wanted, or at least by some of it."""
        piece_bytes = self.limits.piece_bytes(segment, wanted_bytes)
        charged_bytes = self.write(
            lambda cursor: self._charge(cursor, segment, piece_bytes, max(least_bytes, 1))
        )
        return bool(charged_bytes) and self._extend(segment, charged_bytes)

    def _charge(self, cursor: Cursor, segment: Segment, size_bytes: int, least_bytes: int) -> int:
        owner = self.owner.number
        return self.limits.charge(cursor, segment, owner, size_bytes, least_bytes)

    def _extend(self, segment: Segment, size_bytes: int) -> bool:
        """Have the disk set aside what was charged; return whether it has room."""
        statement = "UPDATE segment SET pledged=pledged-? WHERE id=?"
        self._owed.append(lambda c: c.execute(statement, (size_bytes, segment.number)))
        try:
            if segment.is_removed:  # others could not read what is written to it
                raise StaleError(f"segment {segment.number:x} was removed")
            segment.extend(size_bytes)
        except OSError as error:
            self._owe_lower(segment.number, size_bytes)
            self.write(lambda _cursor: None)
            if error.errno not in segments.NO_ROOM:
                raise
            return False
        return True

    def is_here(self, place: Place) -> bool:
        """Return whether a place is still one of this process."""
        segment = place.segment
        return self._own.get(segment.number) is segment or self.vacant.is_borrowed(segment)

    def give_up(self, place: Place) -> None:
        """Give a place back at which no copy was completed; its charge is lowered later."""
        try:
            self._give_up(place)
        except OSError:
            if not self.is_gone():  # else there is nothing to give back
                raise

    def _give_up(self, place: Place) -> None:
        with self.lock:
            if not self.is_here(place):  # it was published, or given up, before
                place.segment.close()
                return
            self.settle([place])
            if not isinstance(place.segment, Segment):
                # Not vacant again: the disk may be unable to write there.
                self.unfinished.append((place.segment.number, place.start, place.size))
                return
            if self._is_left:
                return  # other processes give everything back
            if place.start == WHOLE:
                self._close([place.segment])
            else:
                number = place.segment.number
                segments.punch(self.folder, number, [(place.start, place.size)])
                self._owe_lower(number, place.size)

    def settle(self, places: Sequence[Place], *, is_published: bool = False) -> None:
        """Note that nothing is written at some places any more."""
        with self.lock:
            for _, segment, start, _ in places:
                segment.n_pending -= 1
                if not isinstance(segment, Segment):
                    self.vacant.settle(segment)
                elif is_published and start == WHOLE:
                    self._release(segment)
            if is_published and not all(isinstance(p.segment, Segment) for p in places):
                # A process that waits for this one looks at its own segments: Store.progress.
                with contextlib.suppress(OSError):
                    os.utime(self.owner.fd)
            self._settled.notify_all()
            self._end_ownership()

    def _release(self, segment: Segment) -> None:
        """End the ownership of a segment whose row says that it is closed."""
        self._own.pop(segment.number, None)
        if not segment.n_pending:  # else a thread writes to it still, and closes it then
            segment.close()

    def rest(self) -> None:
        """Give back what is reserved or claimed in vain, which others may need meanwhile."""
        with self.lock:
            self._make_reserve()  # it may have been used, and the disk have room again
            if self._segment.surplus_bytes:
                self._cut_reservation()
            if self._owed:
                self.write(lambda _cursor: None)

    def _cut_reservation(self) -> None:
        """Give back what is reserved; the next write lowers the charge."""
        segment = self._segment
        segments.cut(segment.fd, segment.end)
        self._owe_lower(segment.number, segment.surplus_bytes)
        segment.reserved = segment.end

    def retire(self) -> None:
        """Close the segments that are full, and of which nothing is pending or owed."""
        with self.lock:
            kept = (self._segment, self.owner)
            idle = [s for s in self._own.values() if not s.n_pending and s not in kept]
            if idle and not self._n_owing:  # what is owed changes nothing once they are closed
                self._close(idle)

    def _close(self, own: Sequence[Segment], *, is_last: bool = False) -> None:
        """Give back what segments have reserved too much, and end their ownership."""
        surplus = {}
        for segment in own:
            if not segment.n_pending:  # else it may have been published, and that is to be noted
                segments.cut(segment.fd, segment.end)
            surplus[segment.number] = segment.surplus_bytes

        def work(cursor: Cursor) -> list[int]:
            lower(cursor, surplus, self.owner.number)
            rows = [(number,) for number in surplus]
            cursor.executemany("UPDATE segment SET owner=0, pledged=0 WHERE id=?", rows)
            if is_last:
                cursor.execute("DELETE FROM copying WHERE owner=?", (self.owner.number,))
            return delete_empty(cursor, surplus)

        empty = self.write(work)
        for segment in own:
            if segment.number in empty:
                segments.remove(self.folder, segment.number)
            self._release(segment)

    # --- the end ------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait a little for small files: they are being written at this moment."""
        with self.lock:
            self._settled.wait_for(self._is_settled, _PATIENCE_SECONDS)

    def close(self) -> None:
        """Give back what is reserved, and leave.

        Of what is pending, a large file that is being copied is given back, too. Small files that
        are being written still are left to other processes.
        """
        with self.lock:
            try:
                if self._is_settled() and self.index.is_current():
                    self._close([*self._own.values()], is_last=True)
            except (OSError, IndexDamagedError, StaleError):
                pass  # as if it had been killed: another process takes over
            finally:
                self.leave()

    def _is_settled(self) -> bool:
        """Return whether no place in a segment that files share is pending, nor what is owed."""
        shared = [segment for segment in self._own.values() if segment.end]
        is_pending = self.vacant.is_pending or any(each.n_pending for each in shared)
        return not is_pending and not self._n_owing

    def leave(self) -> None:
        """Let go of the index, and of the segments when that is possible."""
        with self.lock:
            self._is_left, self._was_gone = True, self.is_gone()
            self.index.close()
            if not self._was_gone:  # the log has gone, which may have taken its room
                self._make_reserve()
            self._end_ownership()

    def _end_ownership(self) -> None:
        """Let go of the segments, after leaving, once nothing is written to them any more."""
        is_pending = any(segment.n_pending for segment in self._own.values())
        if not self._is_left or is_pending or self.vacant.is_pending:
            return
        for segment in self._own.values():
            if self._was_gone:  # no row names it, and its folder may have been made anew
                segments.remove(self.folder, segment.number)
            segment.close()
        self._own.clear()
