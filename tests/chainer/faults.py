"""Faults of the environment, really brought about, and what a run must give in spite of them."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.iterators import SerialIterator

from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.chainer.scripts import wait_until
from tests.store.disks import run_as_root

BATCH_SIZE = 4
Content = list[tuple[bytes, int]]


def content(batch: list[Any]) -> Content:
    return [(values.tobytes(), int(index)) for values, index in batch]


class SourceFiles:
    """Files on the source, all old, and the mini-batches that a serial iterator makes of them."""

    def __init__(self, folder: Path, n_files: int = 12, most_bytes: int = 60_000, seed: int = 0):
        self.folder = folder
        self.names = [f"{i // 4}/{i}.bin" for i in range(n_files)]
        self._random = np.random.default_rng(seed)
        for name in self.names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self.write(name, int(self._random.integers(1, most_bytes)))
        self.dataset = DeclaredFiles(folder, self.names)
        serial = SerialIterator(self.dataset, BATCH_SIZE, shuffle=False)
        self.epoch = [content(next(serial)) for _ in range(n_files // BATCH_SIZE)]
        self.total_bytes = sum((folder / name).stat().st_size for name in self.names)

    def write(self, name: str, size_bytes: int) -> None:
        data = self._random.integers(0, 256, size_bytes, dtype=np.uint8).tobytes()
        (self.folder / name).write_bytes(data)
        os.utime(self.folder / name, (10**9, 10**9))

    def iterate(self, directory: Path | None, **options: Any) -> Run:
        """Return a run over the files, in order, staged unless there is no directory."""
        staging = None
        if directory is not None:
            names = ("keep_free", "capacity", "look_ahead", "n_prefetchers")
            chosen = {name: options.pop(name) for name in names if name in options}
            chosen = {"keep_free": 0, "look_ahead": 2, "n_prefetchers": 2, **chosen}
            staging = Staging(directory, source=self.folder, **chosen)
        options = {"n_processes": 2, "dataset_timeout": None, "shuffle": False, **options}
        return Run(self, OverlapIterator(self.dataset, BATCH_SIZE, staging=staging, **options))


class Run(contextlib.AbstractContextManager["Run"]):
    """An iterator whose mini-batches are compared, and whose warnings are kept."""

    def __init__(self, source: SourceFiles, iterator: OverlapIterator) -> None:
        self.source = source
        self.iterator = iterator
        self.n_taken = 0
        self.warnings: list[str] = []

    def __exit__(self, *_: object) -> None:
        self.iterator.finalize()

    @property
    def expected(self) -> Content:
        """The next mini-batch, as it must be."""
        return self.source.epoch[self.n_taken % len(self.source.epoch)]

    def take(self, n_batches: int = 1) -> None:
        """Take mini-batches; each must be that of the serial iterator."""
        for _ in range(n_batches):
            with self.listening():
                batch = next(self.iterator)
            assert content(batch) == self.expected
            self.n_taken += 1

    def skip(self, kind: type[BaseException]) -> BaseException:
        """Take a mini-batch that must fail, and return its error."""
        with pytest.raises(kind) as caught, self.listening():
            next(self.iterator)
        self.n_taken += 1
        return caught.value

    def settle(self) -> None:
        """Wait until no worker reads: all that may be built ahead has been built."""
        n_examples = BATCH_SIZE * (self.n_taken + self.iterator.n_prefetch + 1)
        wait_until(lambda: self.iterator.stats().examples_read >= n_examples)

    def take_until(self, condition: Any, timeout_seconds: float = 60.0) -> None:
        """Take mini-batches until the condition holds of the statistics."""
        deadline = time.monotonic() + timeout_seconds
        while not condition(self.iterator.stats()):
            assert time.monotonic() < deadline, f"not in time: {self.iterator.stats()}"
            self.take()
            time.sleep(0.005)

    def take_until_staged(self) -> None:
        """Take mini-batches until a whole epoch comes from the staging directory."""
        deadline = time.monotonic() + 60
        while True:
            before = self.iterator.stats().opens_source
            self.take(2 * len(self.source.epoch))  # some were built before
            if self.iterator.stats().opens_source == before:
                return
            assert time.monotonic() < deadline, f"not in time: {self.iterator.stats()}"
            time.sleep(0.02)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the warnings given meanwhile."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self.warnings += [str(warning.message) for warning in heard]


def is_lost(fd: int) -> bool:
    """Forget what is in memory of a file; return whether its first byte cannot be read any more.

    A segment may hold nothing, or begin with a hole; a hole is read without the disk.
    """
    try:
        first = os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return True  # there is nothing to lose
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.pread(fd, 1, first)
    except OSError as error:
        return error.errno == errno.EIO
    return False


class Image:
    """A disk in a file, which can lose what it holds and get it back."""

    def __init__(self, path: Path, size_bytes: int = 8 << 20) -> None:
        self.path = path
        path.write_bytes(bytes(size_bytes))
        run_as_root("mkfs.ext4", "-q", "-O", "^has_journal", str(path))
        self._content = b""

    def lose(self, files: list[Path]) -> None:
        """From now on reading any of the files gives EIO."""
        with contextlib.ExitStack() as opened:
            fds = [opened.enter_context(path.open("rb")).fileno() for path in files]
            for fd in fds:
                os.fsync(fd)
            os.sync()
            self._content = self.path.read_bytes()
            os.truncate(self.path, 0)
            for fd in fds:  # not while a process reads what is in memory
                wait_until(lambda fd=fd: is_lost(fd))

    def recover(self) -> None:
        self.path.write_bytes(self._content)
