"""A process that only reads every file of a slow store once: what reading alone costs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection

from bench.slow.store import SlowStore

_N_THREADS = 64


class BareReader:
    """One more process with 64 threads, a fork of this one, that reads files and forgets them.

    Args:
        root: What the paths are relative to.
        store: The emulated slow store to read from; None where the root is slow by itself.
    """

    def __init__(self, root: str, store: SlowStore | None) -> None:
        context = get_context("fork")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(root, store, other))
        self._process.start()
        other.close()

    def start(self, paths: Sequence[str]) -> None:
        """Let it read these files, relative to the root, in this order; does not block."""
        self._connection.send(list(paths))

    def wait(self) -> dict[str, float]:
        """Return when it has read them: ``end`` (monotonic clock) and its CPU ``seconds``."""
        return self._connection.recv()

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()
        self._connection.close()


def _serve(root: str, store: SlowStore | None, connection: Connection) -> None:
    def read(paths: Sequence[str]) -> None:
        for path in paths:
            with open(os.path.join(root, path), "rb", buffering=0) as file:
                file.read()

    with ExitStack() as resources:
        if store is not None:
            resources.enter_context(store.installed())
        while (paths := connection.recv()) is not None:
            before = time.process_time()
            with ThreadPoolExecutor(_N_THREADS) as pool:
                list(pool.map(read, [paths[first::_N_THREADS] for first in range(_N_THREADS)]))
            connection.send({"end": time.monotonic(), "seconds": time.process_time() - before})
