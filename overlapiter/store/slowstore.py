"""The slow store as the stager asks it: what it is asked for, how long it takes, what comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from overlapiter.origins.bulk import Bulk, BulkRead
from overlapiter.origins.origin import Origin, Original, OriginalFile, SizeUntoldError

from .outcome import Answer, NoteAnswers
from .store import Wanted

ResultT = TypeVar("ResultT")

#: What is read at once; smaller files are kept in memory and written together.
CHUNK_BYTES = 256 << 10

_LOOK, _READ = "stat", "read slow store"
_UNKNOWN = Original(0, 0)


class Read(NamedTuple):
    """What became of a file that was asked for.

    There are its ``data``; or it is ``large``, opened, with what closes it; or there is an error;
    or it is empty, or changed meanwhile, or was only to be looked at.
    """

    original: Original
    took_ns: int
    data: bytes | memoryview | None = None
    error: Exception | None = None
    large: tuple[OriginalFile, Callable[[], None]] | None = None


class TimedFile:
    """A file that is read once; ``took_ns`` is how long its answers took, ``n_bytes`` what came."""

    def __init__(self, file: OriginalFile, took_ns: int) -> None:
        self._file = file
        self.took_ns = took_ns
        self.n_bytes = 0

    def stat(self) -> Original:
        """Tell what the file is now."""
        return self._timed(self._file.stat)

    def read(self, size_bytes: int) -> bytes:
        """Return up to so many bytes more."""
        data = self._timed(lambda: self._file.read(size_bytes))
        self.n_bytes += len(data)
        return data

    def _timed(self, ask: Callable[[], ResultT]) -> ResultT:
        began_ns = time.monotonic_ns()
        try:
            return ask()
        finally:
            self.took_ns += time.monotonic_ns() - began_ns


class SlowStore:
    """Asks the source for files. Safe for threads; for the arguments see :class:`.Stager`."""

    def __init__(self, origin: Origin, note_answers: NoteAnswers, bulk: Bulk | None) -> None:
        self._origin = origin
        self._note_answers = note_answers
        self._bulk = bulk
        self._asked: dict[int, None] = {}  # keys, in the order in which it was asked

    def oldest(self) -> int | None:
        """Return the key of the file for which it has been asked for the longest."""
        return next(iter([*self._asked]), None)

    def ask(self, file: Wanted, *, only_look: bool) -> Read:
        """Look at a file; or read it, or open it if it is large. Blocks."""
        self._asked[file.key] = None
        original, data, error, large = _UNKNOWN, None, None, None
        began_ns = time.monotonic_ns()
        try:
            if only_look:
                original = self._origin.stat(file.path)
            else:
                with contextlib.ExitStack() as stack:
                    source = stack.enter_context(self._origin.open(file.path))
                    original = source.stat()
                    if not getattr(source, "tells_size", True):  # a remote file has this
                        raise SizeUntoldError
                    if original.size_bytes <= CHUNK_BYTES:
                        data = _data_of(source, original)
                    else:
                        large = source, stack.pop_all().close
        except (OSError, ValueError) as caught:  # no file can have a path with a null in it
            error = caught if data is None else None  # else closing alone failed
        took_ns = time.monotonic_ns() - began_ns
        if large is None:
            self._end(_LOOK if only_look else _READ, file, took_ns, len(data or b""))
        return Read(original, took_ns, data, error, large)

    @contextlib.contextmanager
    def opened(self, wanted: Wanted, read: Read) -> Iterator[TimedFile]:
        """Go on reading a large file, and close it."""
        assert read.large is not None
        file, close = read.large
        source = TimedFile(file, read.took_ns)
        try:
            yield source
        finally:
            self._end(_READ, wanted, source.took_ns, source.n_bytes)
            with contextlib.suppress(OSError):  # all has come that is to come
                close()

    def _end(self, what: str, file: Wanted, took_ns: int, n_bytes: int) -> None:
        self._asked.pop(file.key, None)  # another part may have the same file
        self._note_answers(what, [(file.path, took_ns, n_bytes)])

    # --- in bulk ------------------------------------------------------------------------------

    def ask_in_bulk(self, asked: Iterable[tuple[Wanted, object]], *, only_look: bool) -> bool:
        """Ask for files, each with what is to come back; return False if that takes jobs."""
        if self._bulk is None or not self._bulk.has_threads:
            return False
        what = _LOOK if only_look else _READ
        tokens = [((what, file, back), file.path) for file, back in asked]
        self._asked.update([(file.key, None) for (_, file, _), _ in tokens])
        self._bulk.submit(tokens, only_look=only_look)
        return True

    def taken(self, reads: Iterable[BulkRead]) -> list[tuple[Any, Read]]:
        """Return what was read in bulk, each with what was to come back."""
        taken: list[tuple[Any, Read]] = []
        answers: dict[str, list[Answer]] = {}
        for each in reads:
            what, file, back = each.token
            took_ns = each.ended_ns - each.began_ns
            read = Read(Original(each.size_bytes, each.mtime_ns), took_ns, each.data)
            if self._bulk is not None and each.fd >= 0:
                stack = contextlib.ExitStack()
                large = stack.enter_context(self._bulk.lent(each, file.path))
                read = read._replace(large=(large, stack.close))
            else:
                self._asked.pop(file.key, None)
                answers.setdefault(what, []).append((file.path, took_ns, len(each.data or b"")))
                if each.error:
                    read = read._replace(error=each.failure())
            taken.append((back, read))
        for what, own in answers.items():
            self._note_answers(what, own)
        return taken


def _data_of(source: OriginalFile, original: Original) -> bytes | None:
    if not original.size_bytes:  # it is empty, or does not tell: a file reader reads it there
        return None
    data = read_whole(source, original.size_bytes)
    return data if source.stat() == original else None  # else it is being written


def read_whole(source: OriginalFile, size_bytes: int) -> bytes:
    """Return the bytes of a small file. Raises OSError if it ends before."""
    data = source.read(size_bytes)
    while len(data) < size_bytes:
        piece = source.read(size_bytes - len(data))
        if not piece:
            raise OSError("the file is shorter than it was")
        data += piece
    return data
