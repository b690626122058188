"""Datasets for the tests of a staging directory that is smaller than the data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.chainer.iterator_datasets import DeclaredFiles

FILE_BYTES = 4096


def names_of(n_files: int) -> list[str]:
    """Return the names of the files that :func:`write_files` writes."""
    return [f"{i % 7}/{i}.bin" for i in range(n_files)]


def write_files(folder: Path, n_files: int, size_bytes: int = FILE_BYTES) -> None:
    """Write files of random content, old ones."""
    for number, name in enumerate(names_of(n_files)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(number)
        path.write_bytes(random.integers(0, 256, size_bytes, dtype=np.uint8).tobytes())
        os.utime(path, (10**9, 10**9))


class FewFiles(DeclaredFiles):
    """Several examples in each file, one part of it each."""

    def __init__(self, folder: Path, names: list[str], n_per_file: int) -> None:
        super().__init__(folder, names)
        self.n_per_file = n_per_file

    def __len__(self) -> int:
        return len(self.names) * self.n_per_file

    def source_paths(self, i: int) -> list[str]:
        return super().source_paths(i // self.n_per_file)

    def get_example(self, i: int) -> tuple[Any, Any]:
        number, part = divmod(i, self.n_per_file)
        values, _ = super().get_example(number)
        size = len(values) // self.n_per_file
        return values[part * size : (part + 1) * size].copy(), np.int32(i)


class Pairs(DeclaredFiles):
    """Two files for each example: its own, and one that it shares with its neighbour."""

    def __len__(self) -> int:
        return len(self.names) // 2

    def source_paths(self, i: int) -> list[str]:
        n = len(self)
        return [os.path.join(self.folder, self.names[k]) for k in (i, n + i // 2)]

    def get_example(self, i: int) -> tuple[Any, Any]:
        parts = []
        for path in self.source_paths(i):
            with open(path, "rb") as file:
                parts.append(np.frombuffer(file.read(), np.uint8))
        return np.concatenate(parts), np.int32(i)


class Drawn:
    """An order sampler that draws with replacement, a few examples far more often than others."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)

    def __call__(self, order: Any, _position: int) -> Any:
        size = len(order)
        weights = 1.0 / (1 + np.arange(size))
        return self.random.choice(size, size, p=weights / weights.sum())
