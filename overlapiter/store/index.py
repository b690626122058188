"""The index of a store: an SQLite database in WAL mode that every prefetcher of the node shares.

A process that forks must never open it, not even before the fork: a child's own connection would
lose commits silently. Nor may anything but SQLite open its files, since closing them would drop
this process's POSIX locks (sqlite.org, "How To Corrupt An SQLite Database File").

Transactions are short: parameters are prepared before ``BEGIN``, and nothing but SQL runs inside.
SQLite's own busy handler sleeps for up to 100 ms, so this module waits by itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

#: For how long a transaction waits for its turn; then the index is off for this process.
PATIENCE_SECONDS = 2.0
#: For how long it is off before it is asked again, and how long that transaction waits.
OFF_SECONDS, _SHORT_PATIENCE_SECONDS = 1.0, 0.1
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0002, 0.005
#: Above this size, or share of the disk, the log is written back into the database.
_CHECKPOINT_BYTES, _CHECKPOINT_SHARE = 16 << 20, 256
#: Above this size, which a reader that was stopped brings about, nothing more is written.
_LONGEST_LOG_BYTES = 256 << 20

VERSION = 2
_PRAGMAS = (
    "PRAGMA synchronous=OFF",  # loses nothing when a process dies; see Store for power failures
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA mmap_size=0",  # a database that was cut would be SIGBUS
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-8192",
)
_SCHEMA = """
CREATE TABLE staged (  -- complete copies; when each was staged, and last of use to a run
  key INTEGER PRIMARY KEY, source INTEGER NOT NULL, path BLOB NOT NULL,
  segment INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
  mtime INTEGER NOT NULL, checksum INTEGER NOT NULL,
  boot INTEGER NOT NULL, at INTEGER NOT NULL, used INTEGER NOT NULL);
CREATE TABLE copying (key INTEGER PRIMARY KEY, owner INTEGER NOT NULL);
CREATE TABLE going (  -- evicted; the owner gives the blocks back to the disk, or to another file
  segment INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL, owner INTEGER NOT NULL,
  PRIMARY KEY (segment, start)) WITHOUT ROWID;
CREATE TABLE segment (  -- the owner is the first segment of the process; 0 once it is closed
  id INTEGER PRIMARY KEY, charged INTEGER NOT NULL, pledged INTEGER NOT NULL,
  run INTEGER NOT NULL, owner INTEGER NOT NULL);
CREATE INDEX open_segment ON segment (owner) WHERE owner > 0;
CREATE TABLE source (id INTEGER PRIMARY KEY, root BLOB NOT NULL, place TEXT NOT NULL);
CREATE TABLE run (
  id INTEGER PRIMARY KEY, source INTEGER NOT NULL, facts TEXT NOT NULL, started REAL NOT NULL,
  told INTEGER NOT NULL DEFAULT 0,  -- 0: nothing, 1: what it uses, 2: that it needs more room, too
  ended REAL, ending TEXT, counters TEXT);
CREATE TABLE wanted (
  key INTEGER NOT NULL, run INTEGER NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY (key, run)) WITHOUT ROWID;
CREATE TABLE fact (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO fact VALUES ('total', 0), ('boot', ''), ('boots', 0);
"""

#: What a transaction runs its statements on.
Cursor = sqlite3.Cursor


class IndexBusyError(OSError):
    """Another process has kept the index locked for too long, or did so a moment ago."""


class IndexDamagedError(Exception):
    """The index cannot be read: its generation is to be thrown away."""


class StaleError(Exception):
    """What this process has opened is not in use any more, and is to be opened anew."""


class Patience:
    """For how long a connection waits for its turn. Not safe for threads."""

    def __init__(self) -> None:
        self.is_short = False  # whether the last wait was in vain
        self._off_until_seconds = self._deadline = self._pause_seconds = 0.0

    def begin(self) -> None:
        """Begin to wait. Raises IndexBusyError at once if that was in vain a moment ago."""
        now_seconds = time.monotonic()
        if now_seconds < self._off_until_seconds:
            raise IndexBusyError("the index was locked a moment ago")
        wait_seconds = _SHORT_PATIENCE_SECONDS if self.is_short else PATIENCE_SECONDS
        self._deadline = now_seconds + wait_seconds
        self._pause_seconds = _FIRST_PAUSE_SECONDS

    def is_over(self) -> bool:
        """Return whether it has lasted long enough; then the index is off."""
        if time.monotonic() < self._deadline:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Leave the index alone for a while."""
        self.is_short = True
        self._off_until_seconds = time.monotonic() + OFF_SECONDS

    def pause(self) -> None:
        """Wait a little, longer each time."""
        time.sleep(self._pause_seconds * random.uniform(1, 3))
        self._pause_seconds = min(1.5 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)


class Index:
    """A connection to the index of one generation. Safe for threads.

    Args:
        path: The database; made if it is missing.
        reading: Outlives this object, so that one that is opened anew does not wait again.
        writing: The same for transactions that write: others' ones keep no reader out.

    Raises:
        OSError: The disk failed, or is full or read-only.
        IndexBusyError: Another process keeps it locked; an OSError, too.
        IndexDamagedError: It is no index of this version.
    """

    def __init__(
        self, path: str, reading: Patience | None = None, writing: Patience | None = None
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._reading, self._writing = reading or Patience(), writing or Patience()
        with self._translated():
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            self._set_up()
            self._inode = os.stat(path).st_ino
            disk = os.statvfs(path)
            share_bytes = disk.f_blocks * disk.f_frsize // _CHECKPOINT_SHARE
            self._checkpoint_bytes = min(_CHECKPOINT_BYTES, share_bytes)
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        for pragma in _PRAGMAS:
            self.value(pragma)
        if self.value("PRAGMA journal_mode=WAL") != "wal":
            raise OSError(errno.EOPNOTSUPP, "the disk cannot share memory", self._path)
        version = self.value("PRAGMA user_version")
        if version == 0:
            self._write(_make_tables)
        elif version != VERSION:
            raise IndexDamagedError(f"{self._path} is of version {version}, not {VERSION}")

    # --- transactions -------------------------------------------------------------------------

    def read(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        """Return what ``work`` selects; it may run several times, and fetches all at once.

        Raises as the constructor, and StaleError if it was closed by another thread.
        """
        with self._lock:
            return self._patiently(self._reading, lambda: work(self._connection.cursor()))

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows that a statement gives. Raises as :meth:`read`."""
        return self.read(lambda cursor: cursor.execute(statement, values).fetchall())

    def value(self, statement: str) -> object:
        """Return the first value that a statement gives. Raises as :meth:`read`."""
        return next((row[0] for row in self.rows(statement)), None)

    def write(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        """Return what ``work`` returns after its changes have been committed; all or none are.

        Blocks for up to 2 s while other processes write. If the disk is full, the log is written
        back, which may give it room, and ``work`` runs once more. Raises as :meth:`read`, and what
        ``work`` raises.
        """
        try:
            answer = self._write(work)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.checkpoint():
                raise
            answer = self._write(work)
        self._checkpoint_if_due()
        return answer

    def _write(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        with self._lock:
            try:
                begin = "BEGIN IMMEDIATE"
                cursor = self._patiently(self._writing, lambda: self._connection.execute(begin))
                with self._translated():
                    answer = work(cursor)
                    cursor.execute("COMMIT")
                    return answer
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # it is closed; the error that led here tells
            if self._connection.in_transaction:  # SQLite has rolled back some by itself
                self._connection.execute("ROLLBACK")

    def _patiently(self, patience: Patience, action: Callable[[], ResultT]) -> ResultT:
        """Return what ``action`` returns, trying again while the index is locked."""
        patience.begin()
        while True:
            try:
                with self._translated():
                    answer = action()
            except IndexBusyError:
                if patience.is_over():
                    raise
            else:
                patience.is_short = False
                return answer
            patience.pause()

    # --- the log ------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        # What it cannot do now, a later commit tries again; this one has succeeded.
        with contextlib.suppress(OSError, StaleError, IndexDamagedError):
            size_bytes = os.stat(self._path + "-wal").st_size
            is_busy = size_bytes > self._checkpoint_bytes and not self.checkpoint()
            if is_busy and size_bytes > _LONGEST_LOG_BYTES:
                self._writing.end()

    def checkpoint(self) -> bool:
        """Write the log back into the database and empty it, unless another process does so now.

        One process at a time: before 3.51.3, several that checkpoint at once may damage the
        database in rare cases. Processes that read or write meanwhile put it off. Returns whether
        it is empty now.
        """
        folder_fd = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._lock, self._translated():
                busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy
        except (BlockingIOError, IndexBusyError):
            return False
        finally:
            os.close(folder_fd)

    # --- life ---------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Return whether the database is still the one at its path; costs one look at the disk."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raise IndexDamagedError unless the database is in order: some 0.3 s for a million files.

        By a connection of its own, so that other threads go on with this one.
        """
        with contextlib.closing(Index(self._path)) as another:
            found = another.value("PRAGMA quick_check(1)")
        if found != "ok":
            raise IndexDamagedError(f"{self._path}: {found}")

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        with self._lock, contextlib.suppress(sqlite3.Error):  # what is committed is committed
            self._connection.close()

    # --- errors -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the errors of SQLite into those of this module, and into OSErrors.

        Python 3.10 does not give their codes, so the texts tell them apart.
        """
        try:
            yield
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            raise StaleError(str(error)) from error
        except sqlite3.Error as error:
            text = str(error)
            if any(word in text for word in _BUSY):
                raise IndexBusyError(text) from error
            if "unable to open" in text:
                self._raise_why()
            for word, number in _ERRNOS.items():
                if word in text:
                    raise OSError(number, f"the index: {text}") from error
            raise IndexDamagedError(text) from error
        except UnicodeDecodeError as error:  # no text of ours is no text
            raise IndexDamagedError(str(error)) from error

    def _raise_why(self) -> None:
        """Raise why the database cannot be opened, if its folder cannot be opened either."""
        os.close(os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC))


#: What the errors of SQLite say. It takes a full quota for a sick disk.
_BUSY = ("locked", "locking protocol")
_ERRNOS = {
    "disk is full": errno.ENOSPC,
    "readonly": errno.EROFS,
    "disk I/O error": errno.EIO,
    "unable to open": errno.EIO,
    "pattern too complex": errno.E2BIG,  # the user's
}


def _make_tables(cursor: Cursor) -> None:
    if cursor.execute("PRAGMA user_version").fetchone()[0] == 0:  # else another process made them
        for statement in _SCHEMA.split(";\n"):
            cursor.execute(statement)
        cursor.execute(f"PRAGMA user_version={VERSION}")
