"""A process that only reads every file of a slow store once: what reading alone costs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from bench.slow import SlowStore, Store

_N_THREADS = 64


def bare_reader(store: Store) -> ProcessPoolExecutor:
    """Return one more process, a fork of this one, in which to call :func:`read_all`.

    It is there already. Where the ``store`` to read from is emulated, it is installed there.
    """
    install = store.install if isinstance(store, SlowStore) else None
    process = ProcessPoolExecutor(1, get_context("fork"), install)
    process.submit(os.getpid).result()  # forks now, before anything is timed
    return process


def read_all(root: str, paths: Sequence[str]) -> dict[str, float]:
    """Read files by 64 threads, in this order, and forget them; the paths are below the root.

    Returns:
        When that was done, ``end`` (monotonic clock), and the CPU ``seconds`` of the process.
    """

    def read(paths: Sequence[str]) -> None:
        for path in paths:
            with open(os.path.join(root, path), "rb", buffering=0) as file:
                file.read()

    before = time.process_time()
    with ThreadPoolExecutor(_N_THREADS) as pool:  # a share for each: a task for a file costs CPU
        list(pool.map(read, [paths[first::_N_THREADS] for first in range(_N_THREADS)]))
    return {"end": time.monotonic(), "seconds": time.process_time() - before}
