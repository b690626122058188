"""The store: staged files of one source root, shared by every process of the node.

Layout below the staging directory::

    imagenet-3f1c0a9b2d4e/        one subdirectory per source root (name and hash), mode 0700
        files/train/n01/a.jpg     mirrors the source's tree; complete files only
        partial/5d41402abc4b2a76  files being copied, named by the hash of their path

The claim on a file is an exclusive ``flock`` on its partial file: the kernel drops it when its
owner dies, so a killed process never blocks another one. A file is published by renaming the
partial file, complete and with the source's mtime, which makes it self-describing: size and mtime
are all that validation needs.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import hashlib
import io
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from overlapiter.errors import StagingError

from .room import Room

_CHUNK_BYTES = 4 << 20
_CLAIM_POLL_SECONDS = 0.002
_CLAIM_PATIENCE_SECONDS = 30.0


class Outcome(enum.Enum):
    """What became of a request to stage a file."""

    COPIED = "copied"
    FOUND = "found"  # staged before, and still valid
    REFUSED = "refused"  # no room, or another process holds the claim for too long
    SOURCE_FAILED = "source failed"  # missing or unreadable: the file reader will report it


class Staged(NamedTuple):
    """Answer of :meth:`Store.stage`; ``path`` is None unless the copy may be read."""

    outcome: Outcome
    path: str | None
    copied_bytes: int = 0


class _SourceError(Exception):
    """The source, not the staging disk, failed."""


class Store:
    """Staged copies of the files below one source root.

    Safe for many threads and processes, of several jobs, on one directory.

    Args:
        directory: The staging directory.
        source: Absolute root of the source files.
        room: Decides whether a file fits.
        validate: Whether a staged file is compared with its source before use.
    """

    def __init__(self, directory: str, source: str, room: Room, *, validate: bool = True) -> None:
        self.source = source
        self._prefix = os.path.join(source, "")
        base = subdirectory(directory, source)
        self._files = os.path.join(base, "files", "")
        self._partial = os.path.join(base, "partial", "")
        self._room = room
        self._validate = validate

    def create(self) -> None:
        """Make the directories, with mode 0700.

        Raises:
            StagingError: A directory cannot be made.
        """
        files, partial = self._files.rstrip("/"), self._partial.rstrip("/")
        for path in (os.path.dirname(files), files, partial):
            try:
                _make_private(path)
                _refuse_foreign(path)
            except OSError as error:
                message = f"cannot make it ({error.strerror}); choose another directory"
                raise StagingError(path, message) from error

    def staged_path(self, path: str) -> str:
        """Return where the copy of ``path``, a normalised path below the source, belongs."""
        return self._files + path[len(self._prefix) :]

    def stage(self, path: str, *, is_trusted: bool = False) -> Staged:
        """Make sure that a valid copy of ``path`` is staged. Blocks while it is read.

        Args:
            path: Normalised absolute path below the source.
            is_trusted: Take a copy as it is, because this run has compared it already.

        Raises:
            OSError: The staging disk failed.
        """
        return self.find(path, is_trusted=is_trusted) or self.fetch(path)

    def find(self, path: str, *, is_trusted: bool = False) -> Staged | None:
        """Return the copy of ``path`` if it is staged and valid, as :meth:`stage` would.

        Costs a look at the staging disk and, if there is a copy to compare, one at the source.
        """
        staged = self.staged_path(path)
        try:
            if self._is_valid(path, _lstat(staged), is_trusted):
                return Staged(Outcome.FOUND, staged)
        except _SourceError:
            return Staged(Outcome.SOURCE_FAILED, None)
        return None

    def fetch(self, path: str) -> Staged:
        """Copy ``path``, unless another process does so first; as :meth:`stage` after a look."""
        staged = self.staged_path(path)
        try:
            with self._claim(path) as partial:
                if partial is None:
                    return Staged(Outcome.REFUSED, None)
                self._room.release(partial.size_bytes)  # the reservation of an owner that died
                if self._is_valid(path, partial.copy):  # published while we waited for the claim
                    return Staged(Outcome.FOUND, staged)
                return self._copy(path, partial, staged)
        except _SourceError:
            return Staged(Outcome.SOURCE_FAILED, None)

    def sweep(self) -> int:
        """Remove partial files whose owner is dead; return how many. Costs one listing."""
        removed = 0
        with contextlib.suppress(OSError), os.scandir(self._partial) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    fd = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        # Its owner may have published it, or another one begun anew, meanwhile.
                        if _try_lock(fd) and os.lstat(entry.path).st_ino == os.fstat(fd).st_ino:
                            self._room.release(os.fstat(fd).st_size)
                            os.unlink(entry.path)
                            removed += 1
                    finally:
                        os.close(fd)
        return removed

    # --- one file -----------------------------------------------------------------------------

    def _is_valid(self, path: str, copy: os.stat_result | None, is_trusted: bool = False) -> bool:
        if copy is None or not stat.S_ISREG(copy.st_mode):
            return False
        if is_trusted or not self._validate:
            return True
        try:
            original = os.stat(path)
        except OSError as error:
            raise _SourceError from error
        return _same_file(copy, original)

    @contextlib.contextmanager
    def _claim(self, path: str) -> Iterator[_Partial | None]:
        """Hold the claim on ``path``; None if another process kept it for too long."""
        name = self._partial + hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
        staged = self.staged_path(path)
        deadline: float | None = None
        while True:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            partial = _Partial(name, fd)
            try:
                if _try_lock(fd) and partial.is_claimed(staged):
                    break
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            now = time.monotonic()
            deadline = deadline or now + _CLAIM_PATIENCE_SECONDS
            if now > deadline:
                yield None
                return
            time.sleep(_CLAIM_POLL_SECONDS)
        try:
            yield partial
        finally:
            if not partial.is_published:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            os.close(fd)

    def _copy(self, path: str, partial: _Partial, staged: str) -> Staged:
        with _open_source(path) as file:
            original = _stat_source(file.fileno())
            if not original.st_size:  # empty, or of a kind that does not tell: read it there
                return Staged(Outcome.SOURCE_FAILED, None)
            if not self._reserve(original.st_size, staged):
                return Staged(Outcome.REFUSED, None)
            try:
                # Its size is its reservation, should we die.
                size_bytes = original.st_size if self._room.is_counting else 0
                if partial.size_bytes != size_bytes:
                    os.ftruncate(partial.fd, size_bytes)
                copied_bytes = _pump(file.fileno(), partial.fd, original.st_size)
                if copied_bytes != original.st_size or not _same_file(
                    original, _stat_source(file.fileno())
                ):
                    raise _SourceError  # it is being written: not ours to keep
                os.utime(partial.fd, ns=(original.st_mtime_ns, original.st_mtime_ns))
                replaced_bytes = 0 if partial.copy is None else _size_of(staged)
                _publish(partial, staged)
            except BaseException:
                self._room.release(original.st_size)
                raise
            self._room.release(replaced_bytes)
        return Staged(Outcome.COPIED, staged, copied_bytes)

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


class _Partial:
    """A partial file; once claimed, nobody else writes to it.

    Attributes:
        size_bytes: What another owner had copied before it died.
        copy: The staged file at the time of the claim; None if there was none.
    """

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.fd = fd
        self.size_bytes = 0
        self.copy: os.stat_result | None = None
        self.is_published = False

    def is_claimed(self, staged: str) -> bool:
        """Look once the lock is held; False if another owner has published or removed the file."""
        held = os.fstat(self.fd)
        self.size_bytes = held.st_size
        self.copy = _lstat(staged)
        return held.st_nlink > 0 and (self.copy is None or self.copy.st_ino != held.st_ino)


def subdirectory(directory: str, source: str) -> str:
    """Return the part of a staging directory that belongs to one source root."""
    digest = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
    name = os.path.basename(source) or "root"
    return os.path.join(directory, f"{name}-{digest}")


def _same_file(one: os.stat_result, other: os.stat_result) -> bool:
    return one.st_size == other.st_size and one.st_mtime_ns == other.st_mtime_ns


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _size_of(path: str) -> int:
    found = _lstat(path)
    return 0 if found is None else found.st_size


def _open_source(path: str) -> io.FileIO:
    try:
        # The builtin, looked up now: whoever wraps the slow store's files wraps it.
        return open(path, "rb", buffering=0)  # the caller closes it
    except OSError as error:
        raise _SourceError from error


def _stat_source(fd: int) -> os.stat_result:
    try:
        return os.fstat(fd)
    except OSError as error:
        raise _SourceError from error


def _pump(source_fd: int, target_fd: int, size_bytes: int) -> int:
    """Copy ``size_bytes``, or up to the end of the source; return the bytes copied."""
    copied_bytes = 0
    while copied_bytes < size_bytes:
        try:
            piece = os.read(source_fd, min(_CHUNK_BYTES, size_bytes - copied_bytes))
        except OSError as error:
            raise _SourceError from error
        if not piece:
            break
        view = memoryview(piece)
        while view:
            view = view[os.write(target_fd, view) :]
        copied_bytes += len(piece)
    return copied_bytes


def _publish(partial: _Partial, staged: str) -> None:
    try:
        os.rename(partial.name, staged)
    except FileNotFoundError:
        _make_private(os.path.dirname(staged))
        os.rename(partial.name, staged)
    partial.is_published = True


def _refuse_foreign(path: str) -> None:
    """Raise OSError unless ``path`` is a directory, not a link to one, and the user's own.

    One that others may enter is closed to them.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "a link, or another user's, is in its place")
    if found.st_mode & 0o077:  # nobody else may plant a link in it
        os.chmod(path, 0o700)


def _make_private(path: str) -> None:
    """Make a directory and its missing parents, all with mode 0700."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_private(os.path.dirname(path.rstrip("/")))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
