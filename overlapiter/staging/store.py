"""The store: staged files of one source root, shared by every process of the node.

Layout below the staging directory::

    imagenet-3f1c0a9b2d4e/        one subdirectory per source root (name and hash), mode 0700
        files/train/n01/a.jpg     mirrors the source's tree; complete files only
        partial/5d41402abc4b2a76  files being copied, named by the hash of their path
        source.json               which source root that is, for the commands (see :mod:`.marks`)

A file is claimed before it is copied (see :mod:`.claim`), and published by renaming the partial
file, complete and with the source's mtime, which makes it self-describing: size and mtime are all
that validation needs.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from overlapiter.errors import StagingError
from overlapiter.sources import stamp_of

from .claim import Claims, Partial, lstat, try_lock
from .folders import make_private, refuse_foreign
from .marks import write_mark
from .origin import LocalOrigin, Origin, Original, OriginalFile
from .room import BusyError, Room

_CHUNK_BYTES = 4 << 20
#: A source that changed so lately may still be written, in pieces that no look at it can tell.
_SETTLING_NS = 2 * 10**9


class Outcome(enum.Enum):
    """What became of a request to stage a file."""

    COPIED = "copied"
    FOUND = "found"  # staged before, and still valid
    REFUSED = "refused"  # no room
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


class _SourceError(Exception):
    """The source, not the staging disk, failed."""


class Store:
    """Staged copies of the files below one source root.

    Safe for many threads and processes, of several jobs, on one directory.

    Args:
        directory: The staging directory.
        source: Absolute root of the source files, or a URL.
        room: Decides whether a file fits.
        validate: Whether a staged file is compared with its source before use.
        origin: Gives the source files; None for those of a mounted directory.
        place: What tells sources of one name apart, such as two servers.

    Attributes:
        origin: The same; whoever wants to watch or to stop reading puts another around it.
    """

    def __init__(
        self,
        directory: str,
        source: str,
        room: Room,
        *,
        validate: bool = True,
        origin: Origin | None = None,
        place: str = "",
    ) -> None:
        self.directory = directory
        self.source = source
        self._prefix = os.path.join(source, "")
        base = subdirectory(directory, source, place)
        self._files = os.path.join(base, "files", "")
        self._partial = os.path.join(base, "partial", "")
        self._room = room
        self._validate = validate
        self.origin = origin or LocalOrigin()
        self._claims = Claims()
        self._evictions = itertools.count()

    def create(self) -> None:
        """Make the directories, with mode 0700.

        Raises:
            StagingError: A directory cannot be made.
        """
        files, partial = self._files.rstrip("/"), self._partial.rstrip("/")
        for path in (os.path.dirname(files), files, partial):
            try:
                make_private(path)
                refuse_foreign(path)
            except OSError as error:
                message = f"cannot make it ({error.strerror}); choose another directory"
                raise StagingError(path, message) from error
        write_mark(os.path.dirname(files), self.source)

    def staged_path(self, path: str) -> str:
        """Return where the copy of ``path``, a normalised path below the source, belongs."""
        return self._files + path[len(self._prefix) :]

    def stage(self, path: str, *, stamp: int = 0) -> Staged:
        """Make sure that a valid copy of ``path`` is staged. Blocks while it is read.

        Args:
            path: Normalised absolute path below the source.
            stamp: Of a copy that this run has compared already; it is valid while untouched.

        Raises:
            OSError: The staging disk failed.
        """
        copy = self.peek(path)
        found = None if copy is None else self.compare(path, copy, stamp=stamp)
        return found or self.fetch(path)

    def peek(self, path: str) -> os.stat_result | None:
        """Look at the copy of ``path``, valid or not; None if there is none. Asks no source."""
        copy = lstat(self.staged_path(path))
        return copy if copy is not None and stat.S_ISREG(copy.st_mode) else None

    def compare(
        self, path: str, copy: os.stat_result, *, stamp: int = 0, origin: Origin | None = None
    ) -> Staged | None:
        """Return the copy of ``path`` that :meth:`peek` saw if it is valid, as :meth:`stage` would.

        Costs a look at the source, unless the copy has that stamp or nothing is to be compared.
        """
        found_stamp = stamp_of(copy)
        is_settled = True
        if found_stamp != stamp and self._validate:
            try:
                original = (origin or self.origin).stat(path)
            except OSError:
                return Staged(Outcome.SOURCE_FAILED, None)
            if Original(copy.st_size, copy.st_mtime_ns) != original:
                return None
            is_settled = _is_settled(original)
        staged, size_bytes = self.staged_path(path), copy.st_size
        return Staged(Outcome.FOUND, staged, found_stamp, 0, is_settled, size_bytes)

    def fetch(
        self, path: str, make_room: MakeRoom | None = None, origin: Origin | None = None
    ) -> Staged:
        """Copy ``path``, unless another process does so first; as :meth:`stage` after a look.

        Args:
            path: Normalised absolute path below the source.
            make_room: Asked while there is no room for the file.
            origin: Where to get it instead of the source; it gives the same content.
        """
        origin = origin or self.origin
        try:
            return self._fetch(path, make_room, origin)
        except FileNotFoundError:  # somebody removed the staging directory
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            self.create()
            return self._fetch(path, make_room, origin)

    def evict(self, path: str) -> int:
        """Remove the copy of ``path``; return the bytes freed, 0 if there is none.

        Raises:
            OSError: The staging disk failed.
        """
        # Taken away under a name of our own, so that of several processes one counts its bytes.
        name = f"{self._partial}evicted-{os.getpid()}-{next(self._evictions)}"
        try:
            os.rename(self.staged_path(path), name)
        except (FileNotFoundError, NotADirectoryError):
            return 0
        freed_bytes = _size_of(name)
        os.unlink(name)
        self._room.release(freed_bytes)
        return freed_bytes

    def release(self, size_bytes: int) -> None:
        """Count bytes in the directory no more that somebody else has removed."""
        self._room.release(size_bytes)

    def sweep(self) -> int:
        """Remove partial files whose owner is dead; return how many. Costs one listing."""
        removed = 0
        with contextlib.suppress(OSError), os.scandir(self._partial) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    fd = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        # Its owner may have published it, or another one begun anew, meanwhile.
                        if try_lock(fd) and os.lstat(entry.path).st_ino == os.fstat(fd).st_ino:
                            os.unlink(entry.path)  # first: see _fetch
                            self._room.release(os.fstat(fd).st_size)
                            removed += 1
                    finally:
                        os.close(fd)
        return removed

    # --- one file -----------------------------------------------------------------------------

    def _fetch(self, path: str, make_room: MakeRoom | None, origin: Origin) -> Staged:
        staged = self.staged_path(path)
        name = self._partial + hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
        try:
            with self._claims.hold(name, staged) as partial:
                if partial is None:
                    return Staged(Outcome.BUSY, None)
                if partial.size_bytes:  # the reservation of an owner that died
                    # In this order: a kill in between counts too much, which a recount mends.
                    os.ftruncate(partial.fd, 0)
                    self._room.release(partial.size_bytes)
                    partial.size_bytes = 0
                copy = self.peek(path)  # published while we waited for the claim
                found = None if copy is None else self.compare(path, copy, origin=origin)
                return found or self._copy(path, partial, staged, make_room, origin)
        except _SourceError:
            return Staged(Outcome.SOURCE_FAILED, None)
        except BusyError:
            return Staged(Outcome.BUSY, None)

    def _copy(
        self,
        path: str,
        partial: Partial,
        staged: str,
        make_room: MakeRoom | None,
        origin: Origin,
    ) -> Staged:
        if partial.copy is not None and stat.S_ISDIR(partial.copy.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a directory is in the place of its copy", staged)
        with _source_errors():
            opened = origin.open(path)
        with opened as file:
            with _source_errors():
                original = file.stat()
            size_bytes = original.size_bytes
            if not size_bytes:  # empty, or of a kind that does not tell: read it there
                return Staged(Outcome.SOURCE_FAILED, None)
            while not self._reserve(size_bytes, staged):
                if make_room is None or not make_room():
                    return Staged(Outcome.REFUSED, None)
            try:
                self._fill(partial, file, original)
                replaced_bytes = 0 if partial.copy is None else _size_of(staged)
                _publish(partial, staged)
            except BaseException:
                self._room.release(size_bytes)
                raise
            self._room.release(replaced_bytes)
        stamp = stamp_of(os.fstat(partial.fd))
        is_settled = _is_settled(original)
        return Staged(Outcome.COPIED, staged, stamp, size_bytes, is_settled, size_bytes)

    def _fill(self, partial: Partial, file: OriginalFile, original: Original) -> None:
        """Copy a source file, which is to be the one that was looked at, to a partial file."""
        # Its size is its reservation, should we die.
        reserved_bytes = original.size_bytes if self._room.is_counting else 0
        if partial.size_bytes != reserved_bytes:
            os.ftruncate(partial.fd, reserved_bytes)
        copied_bytes = _pump(file, partial.fd, original.size_bytes)
        with _source_errors():
            is_same = file.stat() == original
        if copied_bytes != original.size_bytes or not is_same:
            raise _SourceError  # it is being written: not ours to keep
        os.utime(partial.fd, ns=(original.mtime_ns, original.mtime_ns))

    def _reserve(self, size_bytes: int, staged: str) -> bool:
        """Reserve room for a file beside its outdated copy, or else in the place of that."""
        if self._room.reserve(size_bytes):
            return True
        outdated_bytes = _size_of(staged)
        try:
            os.unlink(staged)
        except FileNotFoundError:
            return False
        self._room.release(outdated_bytes)
        return self._room.reserve(size_bytes)


def subdirectory(directory: str, source: str, place: str = "") -> str:
    """Return the part of a staging directory that belongs to one source root, at one place."""
    digest = hashlib.blake2b(os.fsencode(source + place), digest_size=6).hexdigest()
    name = os.path.basename(source) or "root"
    return os.path.join(directory, f"{name}-{digest}")


def _is_settled(original: Original) -> bool:
    return abs(time.time_ns() - original.mtime_ns) > _SETTLING_NS


def _size_of(path: str) -> int:
    found = lstat(path)
    return 0 if found is None else found.st_size


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    """Tell errors of the source from those of the staging disk."""
    try:
        yield
    except OSError as error:
        raise _SourceError from error


def _pump(file: OriginalFile, target_fd: int, size_bytes: int) -> int:
    """Copy ``size_bytes``, or up to the end of the source; return the bytes copied."""
    copied_bytes = 0
    while copied_bytes < size_bytes:
        with _source_errors():
            piece = file.read(min(_CHUNK_BYTES, size_bytes - copied_bytes))
        if not piece:
            break
        view = memoryview(piece)
        while view:
            view = view[os.write(target_fd, view) :]
        copied_bytes += len(piece)
    return copied_bytes


def _publish(partial: Partial, staged: str) -> None:
    try:
        os.rename(partial.name, staged)
    except FileNotFoundError:
        if not os.fstat(partial.fd).st_nlink:  # the whole directory has gone
            raise
        make_private(os.path.dirname(staged))
        os.rename(partial.name, staged)
    partial.is_published = True
