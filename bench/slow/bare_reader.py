"""A process that only reads every file of a slow store once: what reading alone costs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from bench.slow import SlowStore, Store

_N_THREADS = 64


class BareReader:
    """One more process with 64 threads, a fork of this one, that reads files and forgets them.

    Where the ``store`` to read from is emulated, it is installed there. ``paths`` are those of all
    files, relative to the root.
    """

    def __init__(self, root: str, store: Store, paths: Sequence[str]) -> None:
        self.paths = paths
        self._root = root
        install = store.install if isinstance(store, SlowStore) else None
        self._process = ProcessPoolExecutor(1, get_context("fork"), install)
        self._process.submit(os.getpid).result()  # forks now, before anything is timed

    def start(self, paths: Sequence[str]) -> None:
        """Let it read some of the files, in this order; does not block."""
        self._reading = self._process.submit(_read, self._root, list(paths))

    def wait(self) -> dict[str, float]:
        """Return when it has read them: ``end`` (monotonic clock) and its CPU ``seconds``."""
        return self._reading.result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


def _read(root: str, paths: Sequence[str]) -> dict[str, float]:
    def read(paths: Sequence[str]) -> None:
        for path in paths:
            with open(os.path.join(root, path), "rb", buffering=0) as file:
                file.read()

    before = time.process_time()
    with ThreadPoolExecutor(_N_THREADS) as pool:  # a share for each: a task for a file costs CPU
        list(pool.map(read, [paths[first::_N_THREADS] for first in range(_N_THREADS)]))
    return {"end": time.monotonic(), "seconds": time.process_time() - before}
