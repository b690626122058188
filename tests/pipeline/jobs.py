"""Small trainings with one bottleneck each: on an emulated store, with work that takes time."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.slow.store import SlowStore
from overlapiter.options import Staging
from tests.support.engine import Engine

#: What the store charges for a file whatever its size, where it serves so many requests a second.
_CHARGED_BYTES = 1000
_MANY = 1e12


class RequestStore(SlowStore):
    """A store that serves so many files a second, whatever their size."""

    def wait_for(self, relative: str, size: int) -> None:
        """Wait as long as any other file would."""
        del size
        super().wait_for(relative, _CHARGED_BYTES)


class TimedFiles:
    """Files of a folder, each of which takes a while to decode.

    Args:
        names: The paths.
        decode_seconds: Of a core, for each.
    """

    def __init__(self, names: list[str], decode_seconds: float) -> None:
        self.names = names
        self.decode_seconds = decode_seconds

    def __len__(self) -> int:
        return len(self.names)

    def source_paths(self, index: int) -> list[str]:
        """Return the file of an example."""
        return [self.names[index]]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with open(self.names[index], "rb") as file:
            data = file.read()
        end = time.process_time() + self.decode_seconds
        while time.process_time() < end:
            pass
        return np.frombuffer(data[:100], np.uint8), int(index)


@dataclasses.dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        n_files: Files of 5 to 35 kB.
        batch_size: Examples in a mini-batch.
        n_batches: Mini-batches that are trained on.
        train_seconds: Of the trainer, for each mini-batch; it sleeps, as one that awaits a GPU.
        decode_seconds: Of a core, for each example.
        n_readers: File reader processes.
        open_seconds: Latency of the store.
        bytes_per_second: Its bandwidth.
        files_per_second: Files that it serves; None for any number.
        is_staging: Whether there is a staging directory.
        staging: Options of it.
    """

    n_files: int = 400
    batch_size: int = 8
    n_batches: int = 40
    train_seconds: float = 0.0
    decode_seconds: float = 0.0
    n_readers: int = 1
    open_seconds: float = 0.001
    bytes_per_second: float = _MANY
    files_per_second: float | None = None
    is_staging: bool = True
    staging: dict[str, Any] = dataclasses.field(default_factory=dict)

    def files(self, folder: Path) -> list[str]:
        """Make the files, which are the same for all jobs."""
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        names = [str(folder / f"{number:05}") for number in range(self.n_files)]
        for name in names:
            size = int(random.integers(5_000, 35_000))
            if not os.path.exists(name):
                Path(name).write_bytes(random.bytes(size))
                os.utime(name, (10**9, 10**9))
        return names

    def store(self, folder: Path) -> SlowStore:
        """Return the store that the files are in."""
        if self.files_per_second is not None:
            rate = self.files_per_second * _CHARGED_BYTES
            return RequestStore(folder, self.open_seconds, rate)
        return SlowStore(folder, self.open_seconds, self.bytes_per_second)

    def train(self, engine: Engine, n_batches: int | None = None) -> float:
        """Train on mini-batches; return the examples per second."""
        n_batches = n_batches or self.n_batches
        begin = time.perf_counter()
        for _ in range(n_batches):
            next(engine)
            time.sleep(self.train_seconds)
        return n_batches * self.batch_size / (time.perf_counter() - begin)

    def engine(self, dataset: Any, folder: Path, directory: Path, **options: Any) -> Engine:
        """Return the engine of this training."""
        staging = {"source": folder, "keep_free": 0, "n_prefetchers": 1} | self.staging
        return Engine(
            dataset,
            self.batch_size,
            n_readers=self.n_readers,
            staging=Staging(directory, **staging) if self.is_staging else None,
            seed=1,
            **options,
        )


#: By what limits them.
JOBS = {
    "store latency": Job(open_seconds=0.05, staging={"reads_in_flight": 2}),
    "store bandwidth": Job(bytes_per_second=3e6, n_batches=45),
    "store requests": Job(files_per_second=150, n_batches=45),
    "not staged": Job(open_seconds=0.02, is_staging=False),
    "decoding": Job(decode_seconds=0.005),
    "trainer": Job(train_seconds=0.03),
    "directory too small": Job(
        n_files=200, n_batches=75, open_seconds=0.02, staging={"capacity": "1500kB"}
    ),
}
