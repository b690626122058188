"""An emulated slow shared store, at the level of reading files, without any privilege.

A :class:`SlowStore` makes every ``open`` for reading below its root wait as a loaded parallel
file system would let it wait::

    store = SlowStore("/data/photographs", open_seconds=0.010, bytes_per_second=100e6)
    dataset = attach(dataset, store)  # installs itself where the dataset is unpickled
    with store.installed():           # and in this process (and those forked from it)
        ...
    print(store.opens, store.bytes_read, store.opens_by_path())

Each open waits ``open_seconds``; these waits overlap, between threads as well as between processes.
All processes and threads of the machine that use the same store, or a pickled copy of it, share
``bytes_per_second``, first come, first served. Both are paid by one sleep inside ``open``: the
transfer time of the whole file is reserved there, and an ordinary file object comes back, whose
reads cost nothing extra. ``os.open``, ``os.stat`` and directory listings are not delayed, nor are C
libraries that open files by themselves. Each successful open is counted in a log that all processes
share, and which stays exact when processes are killed at any moment.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import io
import os
import pathlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

from bench.slow import ledger

StrPath = str | os.PathLike[str]
AnyPath = StrPath | bytes

DatasetT = TypeVar("DatasetT")

_openers: dict[ledger.State, _SlowOpen] = {}


class _SlowOpen:
    """What stands in ``builtins.open`` while a store is installed.

    An instance rather than a function, so that it does not become a method where a class keeps
    ``open`` as an attribute, just as the built-in does not.
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
            if self._is_from_store(opened, file):
                self.store.wait_for(relative, os.fstat(opened.fileno()).st_size)
        except BaseException:
            opened.close()
            raise
        return opened

    def _is_from_store(self, opened: IO, asked: object) -> bool:
        """Tell whether the opened file is the one asked for.

        A redirection to a staged copy may be installed above this object or below it. In the
        second case what came back is another file, on a fast disk, and costs nothing.
        """
        if opened.name == asked:
            return True
        actual = os.readlink(f"/proc/self/fd/{opened.fileno()}")
        return self.store.relative_path(actual) is not None


class SlowStore(contextlib.AbstractContextManager):
    """A directory tree that is slow to open, and whose bandwidth all its users share.

    Nothing is slow until :meth:`install` is called in a process. Pickled copies share the log with
    the original; the process that made it has to live while they are unpickled. After
    :meth:`close`, or once the original is garbage-collected, copies in other processes go on
    working, and neither the original nor a copy in its process can be used.

    Args:
        root: The directory that is slow; it need not exist yet.
        open_seconds: How long each open waits; 0 for no latency.
        bytes_per_second: The bandwidth that all processes share; ``math.inf`` for no limit.
    """

    def __init__(
        self, root: StrPath, open_seconds: float = 0.010, bytes_per_second: float = 100e6
    ) -> None:
        if open_seconds < 0 or not bytes_per_second > 0:
            raise ValueError("open_seconds must be 0 or more and bytes_per_second more than 0")
        state = ledger.create()
        self.__setstate__((os.path.abspath(root), open_seconds, bytes_per_second, state))
        self._release = weakref.finalize(self, ledger.close, state, os.getpid())

    def __getstate__(self) -> tuple[str, float, float, ledger.State]:
        return self.root, self.open_seconds, self.bytes_per_second, self._state

    def __setstate__(self, state: tuple[str, float, float, ledger.State]) -> None:
        self.root, self.open_seconds, self.bytes_per_second, self._state = state
        names = {self.root, os.path.realpath(self.root)}
        self._prefixes = tuple(name.rstrip(os.sep) + os.sep for name in names)
        ledger.descriptor_of(self._state)

    # -- being slow ---------------------------------------------------------------------------

    def install(self) -> None:
        """Replace ``builtins.open`` and ``io.open`` in this process.

        Idempotent, also between copies of one store. Another replacement may be installed later
        on top of this one. Processes forked afterwards have it too. Call it from one thread.
        """
        opener = _openers.get(self._state)
        if opener is None:
            opener = _openers[self._state] = _SlowOpen(self, builtins.open)
            _replace_open(opener)
        opener.is_active = True

    def uninstall(self) -> None:
        """Make opens in this process fast again. Idempotent.

        If something was installed on top meanwhile, it stays, and the opener below it becomes a
        plain passage.
        """
        opener = _openers.get(self._state)
        if opener is None:
            return
        opener.is_active = False
        if all(found is opener for found in (builtins.open, io.open)):
            _replace_open(opener.below)
            del _openers[self._state]

    @contextlib.contextmanager
    def installed(self) -> Iterator[SlowStore]:
        """Install for the length of a ``with`` block."""
        self.install()
        try:
            yield self
        finally:
            self.uninstall()

    def relative_path(self, path: AnyPath) -> str | None:
        """Return ``path`` relative to the root, or None if it lies elsewhere."""
        name = path if type(path) is str else os.fsdecode(path)
        if not name.startswith("/") or "/." in name or "//" in name:
            name = os.path.abspath(name)
        for prefix in self._prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return None

    def wait_for(self, path: str, size_bytes: int) -> None:
        """Log one open of a path below the root, and block until the whole file could be there."""
        transfer_seconds = size_bytes / self.bytes_per_second
        ready = ledger.add(self._state, path, size_bytes, self.open_seconds, transfer_seconds)
        left = ready - time.monotonic()
        if left > 0:
            time.sleep(left)

    # -- counting, since the last reset -------------------------------------------------------

    @property
    def opens(self) -> int:
        """Successful opens for reading by all processes."""
        return ledger.count(self._state)

    @property
    def bytes_read(self) -> int:
        """Bytes that crossed the store: whole files."""
        return sum(record.size_bytes for record in self.records())

    def records(self) -> list[ledger.OpenRecord]:
        """Return every open, oldest first."""
        return ledger.records(self._state)

    def opens_by_path(self) -> Counter[str]:
        """Return how often each file was opened; keys are relative to the root."""
        return Counter(record.path for record in self.records())

    def counts(self) -> dict[str, int]:
        """Return opens and bytes read, under the names that a mount has for them."""
        return {"opens": self.opens, "bytes_read": self.bytes_read}

    def reset(self) -> None:
        """Forget all counts, for all processes, and make the store idle."""
        ledger.clear(self._state)

    def close(self) -> None:
        """Uninstall in this process and, of the original, forget the state. Idempotent."""
        self.uninstall()
        if release := getattr(self, "_release", None):
            release()

    def __exit__(self, *_exc_info: object) -> None:
        """Close the store, which :meth:`__enter__` did not install."""
        self.close()


def _replace_open(opener: Callable[..., IO]) -> None:
    for module in (builtins, io):
        vars(module)["open"] = opener
    # Python 3.10's pathlib keeps the open that it found when it was imported.
    accessor = getattr(pathlib, "_normal_accessor", None)
    if accessor is not None:
        accessor.open = opener


class _Carried:
    """Carries a store within a data set, and installs it in the process that unpickles that."""

    def __init__(self, store: SlowStore) -> None:
        self._store = store

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state
        self._store.install()


def attach(dataset: DatasetT, store: SlowStore) -> DatasetT:
    """Return a shallow copy of ``dataset`` that installs ``store`` wherever it is unpickled.

    Raises:
        AttributeError: Objects of this class cannot have additional attributes.
    """
    carrier = copy.copy(dataset)
    carrier._slow_store = _Carried(store)  # type: ignore[attr-defined]
    return carrier
