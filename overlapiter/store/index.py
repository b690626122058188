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
from typing import TypeVar

ResultT = TypeVar("ResultT")

#: For how long a transaction waits for its turn; then the store is off for this process.
PATIENCE_SECONDS = 2.0
#: For how long the store is off before it is asked again.
OFF_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0002, 0.005
#: Above this size the log is written back into the database, by one process at a time.
_CHECKPOINT_BYTES = 16 << 20
#: Above this size a process that has published waits until it has been.
_LONGEST_LOG_BYTES = 64 << 20
_LOOK_AT_LOG_EVERY = 64  # commits

VERSION = 1
_PRAGMAS = (
    "PRAGMA synchronous=OFF",  # loses nothing when a process dies; see Store for power failures
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA mmap_size=0",  # a database that was cut would be SIGBUS
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-8192",
)
_SCHEMA = """
CREATE TABLE staged (  -- complete copies
  key INTEGER PRIMARY KEY, source INTEGER NOT NULL, path BLOB NOT NULL,
  segment INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
  mtime INTEGER NOT NULL, checksum INTEGER NOT NULL,
  boot INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE TABLE copying (key INTEGER PRIMARY KEY, owner INTEGER NOT NULL);
CREATE TABLE going (  -- evicted; the blocks are being given back to the disk
  segment INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL, owner INTEGER NOT NULL,
  PRIMARY KEY (segment, start)) WITHOUT ROWID;
CREATE TABLE segment (
  id INTEGER PRIMARY KEY, charged INTEGER NOT NULL, pledged INTEGER NOT NULL,
  run INTEGER NOT NULL, is_open INTEGER NOT NULL);
CREATE TABLE source (id INTEGER PRIMARY KEY, root TEXT NOT NULL, place TEXT NOT NULL);
CREATE TABLE run (
  id INTEGER PRIMARY KEY, source INTEGER NOT NULL, facts TEXT NOT NULL, started REAL NOT NULL,
  ended REAL, ending TEXT, counters TEXT);
CREATE TABLE wanted (
  key INTEGER NOT NULL, run INTEGER NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY (key, run)) WITHOUT ROWID;
CREATE TABLE fact (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO fact VALUES ('total', 0), ('boot', ''), ('boots', 0);
"""

#: What a transaction runs its statements on.
Cursor = sqlite3.Cursor


class IndexBusyError(Exception):
    """Another process has kept the index locked for too long, or did so a moment ago."""


class IndexDamagedError(Exception):
    """The index cannot be read: its generation is to be thrown away."""


class Index:
    """A connection to the index of one generation. Safe for threads.

    Args:
        path: The database; made if it is missing.

    Raises:
        OSError: The disk failed, or is full or read-only.
        IndexBusyError: Another process keeps it locked.
        IndexDamagedError: It is no index of this version.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._off_until_seconds = 0.0
        self._n_commits = 0
        self._is_long = False
        with _translated():
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            self._set_up()
            self._inode = os.stat(path).st_ino
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        cursor = self._connection.cursor()
        for pragma in (*_PRAGMAS, "PRAGMA journal_mode=WAL"):
            self._patiently(lambda pragma=pragma: cursor.execute(pragma).fetchall())  # type: ignore[misc]  # mypy infers no type for the default
        version = self._patiently(lambda: _value(cursor, "PRAGMA user_version"))
        if version == VERSION:
            return
        with self._transaction() as cursor:
            version = _value(cursor, "PRAGMA user_version")
            if version == 0:  # else another process has made the tables meanwhile
                for statement in _SCHEMA.split(";\n"):
                    cursor.execute(statement)
                cursor.execute(f"PRAGMA user_version={VERSION}")
            elif version != VERSION:
                raise IndexDamagedError(f"{self._path} is of version {version}, not {VERSION}")

    # --- transactions -------------------------------------------------------------------------

    def read(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        """Return what ``work`` selects; it may run several times, and fetches all at once.

        Raises:
            OSError: The disk failed.
            IndexBusyError: The index is locked, which reading seldom meets.
            IndexDamagedError: The index is damaged.
        """
        with self._lock:
            return self._patiently(lambda: work(self._connection.cursor()))

    def write(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        """Return what ``work`` returns after its changes have been committed; all or none are.

        Blocks for up to 2 s while other processes write. Raises as :meth:`read`, and what ``work``
        raises.
        """
        with self._lock, self._transaction() as cursor:
            answer = work(cursor)
        self._n_commits += 1
        if self._is_long or self._n_commits % _LOOK_AT_LOG_EVERY == 0:
            self._checkpoint_if_due()
        return answer

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        cursor = self._connection.cursor()
        self._patiently(lambda: cursor.execute("BEGIN IMMEDIATE"))
        with _translated():
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite has rolled back after some errors
                    cursor.execute("ROLLBACK")
                raise

    def _patiently(self, action: Callable[[], ResultT]) -> ResultT:
        """Return what ``action`` returns, trying again while the index is locked."""
        now_seconds = time.monotonic()
        if now_seconds < self._off_until_seconds:
            raise IndexBusyError(self._path)
        deadline = now_seconds + PATIENCE_SECONDS
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                with _translated():
                    return action()
            except IndexBusyError:
                if time.monotonic() > deadline:
                    self._off_until_seconds = time.monotonic() + OFF_SECONDS
                    raise
            time.sleep(pause_seconds * random.uniform(1, 3))
            pause_seconds = min(1.5 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    # --- the log ------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        """Write the log back if it is long; wait for that if it is very long."""
        size_bytes = 0
        with contextlib.suppress(FileNotFoundError):
            size_bytes = os.stat(self._path + "-wal").st_size
        self._is_long = size_bytes > _LONGEST_LOG_BYTES
        if size_bytes > _CHECKPOINT_BYTES:
            self.checkpoint()

    def checkpoint(self) -> bool:
        """Write the log back into the database and empty it, unless another process does so now.

        One process at a time: before 3.51.3, several that checkpoint at once may damage the
        database in rare cases. Whoever reads or writes meanwhile puts it off.

        Returns:
            Whether it is empty now.
        """
        folder_fd = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._lock, _translated():
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
        """Look whether the database is in order: some 0.2 s for a million files.

        Raises:
            IndexDamagedError: It is not.
        """
        found = self.read(lambda cursor: _value(cursor, "PRAGMA quick_check(1)"))
        if found != "ok":
            raise IndexDamagedError(f"{self._path}: {found}")

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        with self._lock, contextlib.suppress(sqlite3.Error):  # what is committed is committed
            self._connection.close()


def _value(cursor: Cursor, statement: str) -> object:
    row = cursor.execute(statement).fetchone()
    return None if row is None else row[0]


#: What the errors of SQLite say, since Python 3.10 does not give their codes.
_BUSY = ("locked", "busy", "locking protocol")
_ERRNOS = {
    "disk is full": errno.ENOSPC,
    "readonly": errno.EROFS,
    "disk I/O error": errno.EIO,
    "unable to open": errno.ENOENT,
    "out of memory": errno.ENOMEM,
}


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn the errors of SQLite into those of this module, and into OSErrors."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if any(word in text for word in _BUSY):
            raise IndexBusyError(text) from error
        for word, number in _ERRNOS.items():
            if word in text:
                raise OSError(number, f"the index: {text}") from error
        raise IndexDamagedError(text) from error
