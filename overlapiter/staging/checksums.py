"""Checksums of staged files: taken while a file is copied, compared when a later run finds it.

They find what the disk, a power failure or somebody's mistake did to a copy, not what somebody
does on purpose. A checksum lies in an extended attribute of the copy, or, where the file system has
none, in a small file beside the tree.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import Protocol

from overlapiter.staging.folders import Folder, OpenFolder, enter

_ATTRIBUTE = "user.overlapiter.blake2b"
_DIGEST_BYTES = 16
SUMS_FOLDER = "sums"
_CHUNK_BYTES = 1 << 20
_NO_ATTRIBUTES = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.E2BIG}
_NO_SUCH = {errno.ENODATA, *_NO_ATTRIBUTES}


class Digest(Protocol):
    """What is computed of the bytes of a file, one after the other."""

    def update(self, data: bytes, /) -> None:
        """Take more of them."""

    def digest(self) -> bytes:
        """Return what was computed so far."""


def new_digest() -> Digest:
    """Return the digest of nothing yet."""
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


class Checksums:
    """The checksums of one source root. Safe for threads.

    Args:
        base: The directory of the source root. If files cannot have attributes, checksums lie in
            one below it, which is made when it is needed.
    """

    def __init__(self, base: Folder) -> None:
        self._base = base

    def note(self, fd: int, key: str, checksum: bytes) -> None:
        """Keep the checksum of a file that is about to be published.

        Args:
            fd: The file.
            key: Of the file.
            checksum: Its checksum.

        Raises:
            OSError: The staging disk failed.
        """
        try:
            os.setxattr(fd, _ATTRIBUTE, checksum)
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
            self._write(key, checksum)

    def is_right(self, fd: int, key: str) -> bool:
        """Return whether a file, which is read to its end, has the checksum that was noted."""
        try:
            expected = self._noted(fd, key)
            if expected is None:
                return False
            digest = new_digest()
            while piece := os.read(fd, _CHUNK_BYTES):
                digest.update(piece)
        except OSError:  # a sector of the disk that cannot be read
            return False
        return digest.digest() == expected

    def forget(self, key: str) -> None:
        """Forget the checksum of a file that was removed."""
        with contextlib.suppress(OSError):
            folder = self._folder()
            os.unlink(key, dir_fd=folder.fd)

    def _folder(self, *, make: bool = False) -> OpenFolder:
        return enter(self._base.opened(), (SUMS_FOLDER,), make=make)

    def _noted(self, fd: int, key: str) -> bytes | None:
        try:
            return os.getxattr(fd, _ATTRIBUTE)
        except OSError as error:
            if error.errno not in _NO_SUCH:
                raise
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            folder = self._folder()
            sidecar = os.open(key, flags, dir_fd=folder.fd)
        except FileNotFoundError:
            return None
        try:
            return os.read(sidecar, _DIGEST_BYTES)
        finally:
            os.close(sidecar)

    def _write(self, key: str, checksum: bytes) -> None:
        folder = self._folder(make=True)
        self.forget(key)  # whatever lies there is not written to
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(key, flags, 0o600, dir_fd=folder.fd)
        try:
            os.write(fd, checksum)
        finally:
            os.close(fd)
