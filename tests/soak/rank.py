"""One rank of a job that takes mini-batches and compares each of them with the source.

Besides, here are the files, and the board on which ranks show how far they are.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import random
import signal
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from chainer.dataset import DatasetMixin

N_RANKS = 4
BATCH_SIZE = 8
_SMALL_BYTES, _LARGE_BYTES = (500, 40_000), (1_100_000, 1_700_000)
_ROW = struct.Struct("=5q")


def make_files(folders: list[Path], n_small: int, n_large: int) -> int:
    """Write the same files into each of some new folders; return how many bytes they are."""
    numbers = random.Random(0)
    n_bytes = 0
    for folder in folders:
        folder.mkdir(parents=True)
    for index in range(n_small + n_large):
        data = numbers.randbytes(
            numbers.randint(*(_SMALL_BYTES if index < n_small else _LARGE_BYTES))
        )
        n_bytes += len(data)
        for folder in folders:
            (folder / file_name(index)).write_bytes(data)
    return n_bytes


def file_name(index: int) -> str:
    """Return the name of a file in its folder."""
    return f"{index:05d}.bin"


class Row(NamedTuple):
    """What a rank shows.

    Attributes:
        pid: Its process; 0 until it has an iterator.
        n_taken: Mini-batches that it has taken and compared.
        n_wrong: Those of them with a wrong byte, or another example than the order has.
        n_examples: Examples in all of them.
        has_ended: 1 once its iterator was finalized in order.
    """

    pid: int = 0
    n_taken: int = 0
    n_wrong: int = 0
    n_examples: int = 0
    has_ended: int = 0


class Board:
    """A file that the ranks of a job and the killer map: a row for each rank."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            file.truncate(_ROW.size * N_RANKS)
            self._memory = mmap.mmap(file.fileno(), _ROW.size * N_RANKS)
        self.close = self._memory.close

    def put(self, rank: int, row: Row) -> None:
        """Show something."""
        _ROW.pack_into(self._memory, _ROW.size * rank, *row)

    def rows(self) -> list[Row]:
        """Return what the ranks show."""
        return [Row(*_ROW.unpack_from(self._memory, _ROW.size * r)) for r in range(N_RANKS)]


class Whole(DatasetMixin):
    """Gives all bytes of a file, and its index."""

    def __init__(self, folder: str, n_files: int) -> None:
        self._folder = folder
        self._n_files = n_files

    def __len__(self) -> int:
        return self._n_files

    def source_paths(self, i: int) -> list[str]:
        """Return the files that an example reads."""
        return [os.path.join(self._folder, file_name(i))]

    def get_example(self, i: int) -> tuple:
        """Return one example."""
        with open(self.source_paths(i)[0], "rb") as file:
            return np.frombuffer(file.read(), np.uint8), np.int32(i)


def is_right(batch: list, indices: list[int], reference: str) -> bool:
    """Return whether a mini-batch has the examples of some indices, each with all its bytes.

    Args:
        batch: The mini-batch.
        indices: What the order has there.
        reference: A folder with the same files as the source.
    """
    return [int(index) for _, index in batch] == indices and all(
        pixels.tobytes() == Path(reference, file_name(index)).read_bytes()
        for (pixels, _), index in zip(batch, indices, strict=True)
    )


def train(request: dict) -> None:
    """Take and compare mini-batches until there were enough, or until told to stop."""
    from mpi4py import MPI

    import overlapiter

    faulthandler.register(signal.SIGUSR1)
    comm, n_files = MPI.COMM_WORLD, request["n_files"]
    order, board = overlapiter.scatter_order(comm, request["seed"]), Board(request["board"])
    indices, position, epoch = order.of_epoch(0, n_files), 0, 0
    staging = overlapiter.Staging(
        request["staging"], source=request["source"], n_prefetchers=1, keep_free=0,
        capacity=request["capacity_bytes"], look_ahead=request["look_ahead"],
    )  # fmt: skip
    dataset = Whole(request["source"], n_files)
    options = {"n_processes": 1, "n_prefetch": 2, "order_sampler": order, "staging": staging}
    with overlapiter.OverlapIterator(dataset, BATCH_SIZE, **options) as iterator:
        row = Row(os.getpid())
        board.put(comm.rank, row)
        while row.n_taken < request["n_batches"] and not os.path.exists(request["stop"]):
            batch = next(iterator)
            wanted = [int(index) for index in indices[position : position + BATCH_SIZE]]
            position += BATCH_SIZE
            if position >= len(indices):
                epoch, position = epoch + 1, position - len(indices)
                indices = order.of_epoch(epoch, n_files)
                wanted += [int(index) for index in indices[:position]]
            is_wrong = not is_right(batch, wanted, request["reference"])
            row = Row(row.pid, row.n_taken + 1, row.n_wrong + is_wrong, row.n_examples + len(batch))
            if is_wrong:
                os.write(2, f"mini-batch {row.n_taken} is wrong: {wanted}\n".encode())
            board.put(comm.rank, row)
            del batch
    board.put(comm.rank, row._replace(has_ended=1))
