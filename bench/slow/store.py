"""An emulated slow shared store, at the level of reading files, without any privilege."""

from __future__ import annotations

import builtins
import contextlib
import copy
import fcntl
import io
import os
import pathlib
import struct
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, TypeVar

StrPath = str | os.PathLike[str]
AnyPath = StrPath | bytes
#: By what other processes find a log: where the one that made it has it open, and its inode.
Log = tuple[str, int]

DatasetT = TypeVar("DatasetT")

_RECORD_BYTES = 256  # divides the page size: a signal never splits the write of one
_HEAD = struct.Struct("<dqiH")
_PATH_BYTES = _RECORD_BYTES - _HEAD.size
#: The only store of this process for each log: were a second one installed, each open would count
#: twice.
_stores: weakref.WeakValueDictionary[Log, SlowStore] = weakref.WeakValueDictionary()


class OpenRecord(NamedTuple):
    """One open that crossed the slow store."""

    ready_seconds: float  # when the file was ready to read, on the machine's monotonic clock
    size_bytes: int  # of the file, all of which was charged
    pid: int  # of the process that opened it
    path: str  # relative to the root; only its last 234 bytes if it is longer


class _SlowOpen:
    """What stands in ``builtins.open`` while a store is installed, below any redirection to copies.

    An instance: unlike a function it becomes no method where a class keeps it as an attribute.
    """

    def __init__(self, store: SlowStore, below: Callable[..., IO]) -> None:
        self.store = store
        self.below = below
        self.is_active = True

    def __call__(self, file: AnyPath | int, mode: str = "r", *args: object, **kwargs: object) -> IO:
        relative = None
        if self.is_active and not isinstance(file, int) and not set("wax") & set(mode):
            relative = self.store.relative_path(file)
        if relative is None:
            return self.below(file, mode, *args, **kwargs)
        try:
            opened = self.below(file, mode, *args, **kwargs)
        except OSError:
            time.sleep(self.store.open_seconds)
            raise
        try:
            self.store.wait_for(relative, os.fstat(opened.fileno()).st_size)
        except BaseException:
            opened.close()
            raise
        return opened


class SlowStore(contextlib.AbstractContextManager):
    """A directory tree that is slow to open, and whose bandwidth all its users share.

    Where it is installed, every ``open`` for reading below its root waits::

        store = SlowStore("/data/photographs", open_seconds=0.010, bytes_per_second=100e6)
        dataset = attach(dataset, store)  # installs itself where the dataset is unpickled
        with store.install():             # and in this process (and those forked from it)
            ...
        print(store.opens, store.bytes_read, store.opens_by_path())

    The waits overlap, between threads as well as between processes. All that use the same store, or
    a pickled copy of it, share the bandwidth, first come, first served. Both are paid by one sleep
    inside ``open``, for the whole file. ``os.open``, ``os.stat`` and directory listings are not
    delayed, nor are C libraries that open files.

    Each successful open is a record in a log, memory without a name that all processes share. It
    lies within one page and is written by one system call, so the log is exact, whenever processes
    are killed. The process that made the store has to live when a pickled copy is unpickled, or a
    FileNotFoundError is raised; after :meth:`close`, or once the store is garbage-collected, it
    goes on working in the other processes. ``math.inf`` is no limit of the bandwidth.
    """

    def __init__(
        self, root: StrPath, open_seconds: float = 0.010, bytes_per_second: float = 100e6,
        log: Log | None = None,
    ) -> None:  # fmt: skip
        if open_seconds < 0 or not bytes_per_second > 0:
            raise ValueError("open_seconds must be 0 or more and bytes_per_second more than 0")
        flags = os.O_RDWR | os.O_CLOEXEC
        self._fd = os.open(log[0], flags) if log else os.memfd_create("slowstore")
        self._release = weakref.finalize(self, os.close, self._fd)
        self._log = log or (f"/proc/{os.getpid()}/fd/{self._fd}", os.fstat(self._fd).st_ino)
        if os.fstat(self._fd).st_ino != self._log[1]:  # another file has got the number since
            raise FileNotFoundError(f"{self._log[0]}: the slow store has been closed")
        self.root, self.open_seconds = os.path.abspath(root), open_seconds
        self.bytes_per_second = bytes_per_second
        names = {self.root, os.path.realpath(self.root)}
        self._prefixes = tuple(name.rstrip(os.sep) + os.sep for name in names)
        self._opener: _SlowOpen | None = None
        _stores[self._log] = self

    def __reduce__(self) -> tuple:
        return self._unpickled, (self.root, self.open_seconds, self.bytes_per_second, self._log)

    @classmethod
    def _unpickled(cls, *arguments: object) -> SlowStore:
        return _stores.get(arguments[-1]) or cls(*arguments)

    # -- being slow ---------------------------------------------------------------------------

    def install(self) -> contextlib.ExitStack:
        """Replace ``builtins.open`` and ``io.open`` in this process, and those forked from it.

        Idempotent, for one thread. Another replacement may be installed later on top of this one.
        It is for good, or for a ``with`` block, which takes what is returned.
        """
        if self._opener is None:
            self._opener = _SlowOpen(self, builtins.open)
            _replace_open(self._opener)
        self._opener.is_active = True
        block = contextlib.ExitStack()
        block.callback(self.uninstall)
        return block

    def uninstall(self) -> None:
        """Make opens in this process fast again. Idempotent.

        What was installed on top meanwhile stays, and the opener below it only passes on.
        """
        if self._opener:
            self._opener.is_active = False
            if builtins.open is io.open is self._opener:
                _replace_open(self._opener.below)
                self._opener = None

    def relative_path(self, path: AnyPath) -> str | None:
        """Return ``path`` relative to the root, or None if it lies elsewhere."""
        name = path if type(path) is str else os.fsdecode(path)
        if not name.startswith("/") or "/." in name or "//" in name:
            name = os.path.abspath(name)
        roots = (prefix for prefix in self._prefixes if name.startswith(prefix))
        return next((name[len(prefix) :] for prefix in roots), None)

    def wait_for(self, path: str, size_bytes: int) -> None:
        """Log one open of a path below the root, and block until the whole file could be there."""
        with self._locked():
            end = self.opens * _RECORD_BYTES
            last = os.pread(self._fd, _HEAD.size, end - _RECORD_BYTES) if end else bytes(_HEAD.size)
            busy_until = _HEAD.unpack(last)[0]
            ready = max(time.monotonic() + self.open_seconds, busy_until)
            ready += size_bytes / self.bytes_per_second
            name = os.fsencode(path)[-_PATH_BYTES:]
            head = _HEAD.pack(ready, size_bytes, os.getpid(), len(name))
            os.pwrite(self._fd, (head + name).ljust(_RECORD_BYTES, b"\0"), end)
        time.sleep(max(ready - time.monotonic(), 0.0))

    # -- counting ------------------------------------------------------------------------------

    @property
    def opens(self) -> int:
        """Successful opens for reading by all processes."""
        return os.fstat(self._fd).st_size // _RECORD_BYTES

    @property
    def bytes_read(self) -> int:
        """Bytes that crossed the store: whole files."""
        return sum(record.size_bytes for record in self.records())

    def records(self) -> list[OpenRecord]:
        """Return every open, oldest first."""
        data = os.pread(self._fd, self.opens * _RECORD_BYTES, 0)
        found = struct.iter_unpack(f"{_HEAD.format}{_PATH_BYTES}s", data)
        return [OpenRecord(*facts, os.fsdecode(name[:length])) for *facts, length, name in found]

    def opens_by_path(self) -> Counter[str]:
        """Return how often each file was opened; keys are relative to the root."""
        return Counter(record.path for record in self.records())

    def counts(self) -> dict[str, int]:
        """Return opens and bytes read, as those of a mount."""
        return {"store_opens": self.opens, "store_bytes": self.bytes_read}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude all other threads and processes. A killed holder lets go."""
        # The lock belongs to what is opened here; through `_fd` all threads would have the same.
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
            os.close(fd)

    def close(self) -> None:
        """Uninstall in this process, in which it is not to be used any more. Idempotent."""
        self.uninstall()
        _stores.pop(self._log, None)
        self._release()

    def __exit__(self, *_exc_info: object) -> None:
        """Close the store, which :meth:`__enter__` did not install."""
        self.close()


def _replace_open(opener: Callable[..., IO]) -> None:
    for module in (builtins, io):
        vars(module)["open"] = opener
    # Python 3.10's pathlib keeps the open that it found when it was imported.
    if accessor := getattr(pathlib, "_normal_accessor", None):
        accessor.open = opener


class _Carried:
    """Carries a store within a data set, and installs it in the process that unpickles that."""

    def __init__(self, store: SlowStore) -> None:
        self._store = store

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state
        self._store.install()


def attach(dataset: DatasetT, store: SlowStore) -> DatasetT:
    """Return a shallow copy of ``dataset`` that installs ``store`` wherever it is unpickled."""
    carrier = copy.copy(dataset)
    carrier._slow_store = _Carried(store)  # type: ignore[attr-defined]
    return carrier
