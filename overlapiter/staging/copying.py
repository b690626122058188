"""The bytes on their way from the source to a partial file."""

from __future__ import annotations

import os
import time

from overlapiter.origins.origin import Original, OriginalFile
from overlapiter.staging.checksums import Digest
from overlapiter.staging.claim import Partial

_CHUNK_BYTES = 4 << 20
#: A source that changed so lately may still be written, in pieces that no look at it can tell.
_SETTLING_NS = 2 * 10**9


class SourceError(Exception):
    """The source, not the staging disk, failed."""


class _SourceErrors:
    """Tells errors of the source from those of the staging disk, in a ``with`` block."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Raise another error in the place of one of the source."""
        if isinstance(error, OSError):
            raise SourceError from error


#: One for all blocks: each file goes through several, and a generator costs more than they do.
source_errors = _SourceErrors()


def fill(partial: Partial, file: OriginalFile, original: Original, digest: Digest | None) -> None:
    """Copy a source file, which is to be the one that was looked at, to a partial file."""
    copied_bytes = _pump(file, partial.fd, original.size_bytes, digest)
    with source_errors:
        is_same = file.stat() == original
    if copied_bytes != original.size_bytes or not is_same:
        raise SourceError  # it is being written: not ours to keep
    os.utime(partial.fd, ns=(original.mtime_ns, original.mtime_ns))


def _pump(file: OriginalFile, target_fd: int, size_bytes: int, digest: Digest | None) -> int:
    """Copy ``size_bytes``, or up to the end of the source; return the bytes copied."""
    copied_bytes = 0
    while copied_bytes < size_bytes:
        with source_errors:
            piece = file.read(min(_CHUNK_BYTES, size_bytes - copied_bytes))
        if not piece:
            break
        if digest is not None:
            digest.update(piece)
        written_bytes = os.write(target_fd, piece)
        while written_bytes < len(piece):
            written_bytes += os.write(target_fd, memoryview(piece)[written_bytes:])
        copied_bytes += len(piece)
    return copied_bytes


def has_settled(original: Original) -> bool:
    """Return whether a source file has not changed lately, nor seems to in the future."""
    return abs(time.time_ns() - original.mtime_ns) > _SETTLING_NS
