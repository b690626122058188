"""The store: staged files of one source root, shared by every process of the node.

Layout below the staging directory::

    imagenet-3f1c0a9b2d4e/        one subdirectory per source root (name and hash), mode 0700
        files/train/n01/a.jpg     mirrors the source's tree; complete files only
        partial/5d41402abc4b2a76  files being copied, named by the hash of their path
        sums/5d41402abc4b2a76     checksums, where files cannot have attributes
        interest                  who is about to read what (see :mod:`.interest`)
        source.json               which source root that is, for the commands (see :mod:`.marks`)

A file is claimed before it is copied (see :mod:`.claim`), and published by renaming the partial
file, complete and with the source's mtime, which makes it self-describing: size and mtime are all
that validation needs.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from overlapiter.errors import StagingError
from overlapiter.origins.origin import LocalOrigin, Origin, Original
from overlapiter.sources import stamp_of
from overlapiter.staging.checksums import Checksums, new_digest
from overlapiter.staging.claim import Claims, Partial
from overlapiter.staging.copying import SourceError, fill, has_settled, source_errors
from overlapiter.staging.folders import (
    Folder,
    key_of,
    make_private,
    names_of,
    refuse_foreign,
    refuse_too_long,
    subdirectory,
)
from overlapiter.staging.marks import write_mark
from overlapiter.staging.room import Room
from overlapiter.staging.tree import Place, Tree, take_away
from overlapiter.staging.usage import BusyError

#: How a staged file is compared with its source before a run first uses it.
Validation = Literal["mtime", "checksum", "never"]


class Outcome(enum.Enum):
    """What became of a request to stage a file."""

    COPIED = "copied"
    FOUND = "found"  # staged before, and still valid
    REFUSED = "refused"  # no room
    TOO_LARGE = "too large"  # for all the room there is
    FAILED = "failed"  # the disk; from those alone that let no disk raise
    BUSY = "busy"  # another process holds the claim, or the count of bytes in use, for too long
    SOURCE_FAILED = "source failed"  # missing or unreadable: the file reader will report it


class Staged(NamedTuple):
    """Answer of :meth:`Store.stage`.

    Attributes:
        outcome: What became of it.
        path: The staged copy; None unless it may be read.
        stamp: The copy's stamp, see :func:`~overlapiter.sources.stamp_of`.
        copied_bytes: Bytes read from the source.
        is_settled: Whether the copy need not be compared again; not while the source is so new
            that it may still be written.
        size_bytes: Size of the copy.
        tier: The tier of the staging directory that it is in; 0 is the fastest one.
    """

    outcome: Outcome
    path: str | None
    stamp: int = 0
    copied_bytes: int = 0
    is_settled: bool = True
    size_bytes: int = 0
    tier: int = 0


#: Asked to free something of a staging directory that is full; says whether it could.
MakeRoom = Callable[[], bool]


class _Request(NamedTuple):
    """A file to copy.

    Attributes:
        path: Its path.
        make_room: See :meth:`Store.fetch`.
        origin: Where to get it.
    """

    path: str
    make_room: MakeRoom | None
    origin: Origin


class Store:
    """Staged copies of the files below one source root.

    Safe for many threads and processes, of several jobs, on one directory. No path makes it touch
    anything outside the directory.

    Args:
        directory: The staging directory.
        source: Absolute root of the source files, or a URL.
        room: Decides whether a file fits.
        validate: ``"mtime"`` compares size and mtime of a staged file with those of its source
            before use; ``"checksum"`` also what it contains with what was copied; ``"never"``
            compares nothing.
        origin: Gives the source files; None for those of a mounted directory.
        place: What tells sources of one name apart, such as two servers.

    Attributes:
        base: The subdirectory that belongs to this source root.
        room: The same.
        origin: The same; whoever wants to watch or to stop reading puts another around it.
    """

    def __init__(
        self,
        directory: str,
        source: str,
        room: Room,
        *,
        validate: Validation = "mtime",
        origin: Origin | None = None,
        place: str = "",
    ) -> None:
        self.directory = directory
        self.source = source
        self._prefix = os.path.join(source, "")
        self.base = subdirectory(directory, source, place)
        name = os.path.basename(self.base)
        files, partial = (Folder(directory, name, part) for part in ("files", "partial"))
        self._folders = files, partial, Folder(directory, name)
        self._files = os.path.join(files.path, "")
        self._partial = partial
        self._tree = Tree(files)
        self._claims = Claims(partial)
        self._checksums = Checksums(self._folders[2])
        self.room = room
        self.excess_bytes = room.excess_bytes
        self._validate = validate
        self.origin = origin or LocalOrigin()

    def create(self) -> None:
        """Make the directories, with mode 0700. Raises StagingError if one cannot be made."""
        files, partial, _ = self._folders
        for path in (self.base, files.path, partial.path):
            try:
                make_private(path)
                refuse_foreign(path)
            except OSError as error:
                message = f"cannot make it ({error.strerror}); choose another directory"
                raise StagingError(path, message) from error
        write_mark(self.base, self.source)

    def staged_path(self, path: str) -> str:
        """Return where the copy of ``path``, a normalised path below the source, belongs."""
        return self._files + path[len(self._prefix) :]

    def stage(self, path: str, *, stamp: int = 0) -> Staged:
        """Make sure that a valid copy of ``path`` is staged. Blocks while it is read.

        Args:
            path: Normalised absolute path below the source; the source fails for any other.
            stamp: Of a copy that this run has compared already; it is valid while untouched.

        Raises:
            OSError: The staging disk failed.
        """
        copy = self.peek(path)
        found = None if copy is None else self.compare(path, copy, stamp=stamp)
        return found or self.fetch(path)

    def peek(self, path: str) -> os.stat_result | None:
        """Look at the copy of ``path``, valid or not; None if there is none. Asks no source."""
        names = names_of(self._prefix, path)
        return None if names is None else self._tree.peek(names)

    def compare(
        self, path: str, copy: os.stat_result, *, stamp: int = 0, origin: Origin | None = None
    ) -> Staged | None:
        """Return the copy of ``path`` that :meth:`peek` saw if it is valid, as :meth:`stage` would.

        Costs a look at the source, unless the copy has that stamp or nothing is to be compared;
        where checksums are, the copy is read.
        """
        found_stamp = stamp_of(copy)
        is_settled = True
        if found_stamp != stamp and self._validate != "never":
            try:
                original = (origin or self.origin).stat(path)
            except OSError:
                return Staged(Outcome.SOURCE_FAILED, None)
            if Original(copy.st_size, copy.st_mtime_ns) != original:
                return None
            if not self.is_intact(path):
                return None
            is_settled = has_settled(original)
        staged = self.staged_path(path)
        return Staged(Outcome.FOUND, staged, found_stamp, 0, is_settled, copy.st_size)

    def is_intact(self, path: str) -> bool:
        """Return whether a copy is what was copied; without checksums, nobody knows."""
        if self._validate != "checksum":
            return True
        try:
            fd = self._tree.place(names_of(self._prefix, path) or ("",)).open()
        except OSError:  # it was removed meanwhile
            return False
        try:
            return self._checksums.is_right(fd, key_of(path))
        finally:
            os.close(fd)

    def fetch(
        self, path: str, make_room: MakeRoom | None = None, origin: Origin | None = None
    ) -> Staged:
        """Copy ``path``, unless another process does so first; as :meth:`stage` after a look.

        Args:
            path: Normalised absolute path below the source.
            make_room: Asked while there is no room for the file.
            origin: Where to get it instead of the source; it gives the same content.
        """
        names = names_of(self._prefix, path)
        if names is None:  # no file can have that path
            return Staged(Outcome.SOURCE_FAILED, None)
        refuse_too_long(self.staged_path(path))
        request = _Request(path, make_room, origin or self.origin)
        try:
            return self._fetch(request, names)
        except FileNotFoundError:  # somebody removed the staging directory
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            self.close()
            self.create()
            return self._fetch(request, names)

    def evict(self, path: str) -> int:
        """Remove the copy of ``path``; return the bytes freed. Raises OSError as :meth:`stage`."""
        names = names_of(self._prefix, path)
        if names is None:
            return 0
        try:
            place = self._tree.place(names)
            return self.room.free(lambda: self._take_away(path, place))
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def _take_away(self, path: str, place: Place) -> int | None:
        freed_bytes = place.remove(self._partial.opened())
        if freed_bytes != 0 and self._validate == "checksum":
            self._checksums.forget(key_of(path))
        return freed_bytes

    def evict_entry(self, name: str, folder_fd: int) -> int:
        """Remove a staged file of any source root, from its open folder; as :meth:`evict`."""
        return self.room.free(lambda: take_away(folder_fd, name, self._partial.opened()))

    def sweep(self) -> int:
        """Remove partial files whose owner is dead; return how many. Costs one listing."""
        return self._claims.sweep(self.room.free)

    def close(self) -> None:
        """Close the directories that are kept open; whatever is done later opens them anew."""
        self._tree.close()
        for folder in self._folders:
            folder.close()

    # --- one file -----------------------------------------------------------------------------

    def _fetch(self, request: _Request, names: Sequence[str]) -> Staged:
        try:
            with self._claims.hold(key_of(request.path)) as partial:
                if partial is None:
                    return Staged(Outcome.BUSY, None)
                try:
                    return self._fetch_claimed(request, self._tree.place(names), partial)
                finally:
                    if partial.size_bytes and not partial.is_published:
                        self.room.free(partial.remove)
        except SourceError:
            return Staged(Outcome.SOURCE_FAILED, None)
        except BusyError:
            return Staged(Outcome.BUSY, None)

    def _fetch_claimed(self, request: _Request, place: Place, partial: Partial) -> Staged:
        if partial.left is not None:
            self.room.free(partial.remove_left)
        there = place.look()
        if there is not None and self._tree.is_own_file(there):  # published while we waited
            found = self.compare(request.path, there, origin=request.origin)
            if found is not None:
                return found
        if there is not None and stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a directory is in the place of its copy")
        return self._copy(request, place, partial)

    def _copy(self, request: _Request, place: Place, partial: Partial) -> Staged:
        with source_errors:
            opened = request.origin.open(request.path)
        with opened as file:
            with source_errors:
                original = file.stat()
            size_bytes = original.size_bytes
            if not size_bytes:  # empty, or of a kind that does not tell: read it there
                return Staged(Outcome.SOURCE_FAILED, None)
            if not self.room.can_hold(size_bytes):
                return Staged(Outcome.TOO_LARGE, None)
            while not self._reserve(size_bytes, place, partial):
                if request.make_room is None or not request.make_room():
                    return Staged(Outcome.REFUSED, None)
            digest = new_digest() if self._validate == "checksum" else None
            fill(partial, file, original, digest)
        if digest is not None:
            self._checksums.note(partial.fd, key_of(request.path), digest.digest())
        # Nobody else puts a copy into an empty place while we hold the claim, if that is a lock.
        if place.was_taken or not partial.is_locked:
            self._remove_outdated(place)
        place.publish(partial)
        stamp, is_settled = stamp_of(os.fstat(partial.fd)), has_settled(original)
        staged = self.staged_path(request.path)
        return Staged(Outcome.COPIED, staged, stamp, size_bytes, is_settled, size_bytes)

    def _reserve(self, size_bytes: int, place: Place, partial: Partial) -> bool:
        """Reserve room for a file beside its outdated copy, or else in the place of that."""
        n_inodes = place.n_inodes
        is_granted = self.room.reserve(size_bytes, n_inodes=n_inodes, fd=partial.fd)
        if not is_granted and self._remove_outdated(place):
            is_granted = self.room.reserve(size_bytes, n_inodes=n_inodes, fd=partial.fd)
        if is_granted:
            partial.size_bytes = size_bytes
        return is_granted

    def _remove_outdated(self, place: Place) -> bool:
        """Remove what lies in the place of a copy, which counts; return whether it did."""
        if place.look() is None:
            return False
        self.room.free(lambda: place.remove(self._partial.opened()))
        return True
