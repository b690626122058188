"""Data sets of files, which are made, copied or read as a whole, and checks of their examples."""

import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from bench.harness.machine import is_installed

Example = tuple[np.ndarray, np.ndarray]


class Heads:
    """Gives ``(uint8 array, int32 label)``: the first bytes of each file, without decoding it."""

    def __init__(self, pairs: list[tuple[str, int]], root: str) -> None:
        self._pairs = pairs
        self._root = root

    def __len__(self) -> int:
        return len(self._pairs)

    def source_paths(self, index: int) -> list[str]:
        """Return the files that an example reads."""
        return [os.path.join(self._root, self._pairs[index][0])]

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        with open(self.source_paths(index)[0], "rb") as file:
            return self._content(file), np.int32(self._pairs[index][1])

    def _content(self, file: IO[bytes]) -> np.ndarray:
        return np.frombuffer(file.read()[:64], np.uint8)


class Images(Heads):
    """Gives the examples of Chainer's ``LabeledImageDataset``."""

    def _content(self, file: IO[bytes]) -> np.ndarray:
        with Image.open(file) as image:
            return np.asarray(image, np.float32).transpose(2, 0, 1)


def images_of(pairs: list[tuple[str, int]], root: str) -> Any:
    """Return the images of Chainer's data set, or the same ones where there is no Chainer."""
    if not is_installed("chainer"):
        return Images(pairs, root)
    from chainer.datasets import LabeledImageDataset

    return LabeledImageDataset(pairs, root)


def copy_files(paths: Iterable[str], source: str, target: str, n_streams: int) -> None:
    """Copy files before training, as users do by hand, ``n_streams`` at a time; makes folders."""
    paths = list(paths)
    for folder in {os.path.dirname(path) for path in paths}:
        os.makedirs(os.path.join(target, folder), exist_ok=True)
    copies = Path(target)
    for_each(paths, source, lambda file, path: (copies / path).write_bytes(file.read()), n_streams)


def read_files(paths: Iterable[str], root: str) -> None:
    """Read every file once, so that the page cache holds it."""
    for path in paths:
        Path(root, path).read_bytes()


def forget_files(paths: Sequence[str], root: str) -> None:
    """Have the page cache drop every file, so that a read of it asks the store."""
    # By threads: such a store takes long to open each of them.
    advise, dropped = os.posix_fadvise, os.POSIX_FADV_DONTNEED
    for_each(paths, root, lambda file, _path: advise(file.fileno(), 0, 0, dropped))


def for_each(paths: Sequence[str], root: str, function: Callable, n_threads: int = 64) -> None:
    """Open files below the root by threads, in this order; call a function with file and path."""
    from concurrent.futures import ThreadPoolExecutor  # the workers import this module, too

    def take(paths: Sequence[str]) -> None:
        for path in paths:
            with open(os.path.join(root, path), "rb", buffering=0) as file:
                function(file, path)

    with ThreadPoolExecutor(n_threads) as pool:  # a share for each: a task for a file costs CPU
        list(pool.map(take, [paths[first::n_threads] for first in range(n_threads)]))


def read_pairs(path: str, count: int) -> list[tuple[str, int]]:
    """Return the first ``count`` pairs of a file of ``path label`` lines."""
    with open(path, encoding="utf-8-sig") as file:
        lines = [line.rsplit(maxsplit=1) for line in itertools.islice(file, count)]
    if bad := [line for line in lines if len(line) != 2 or not line[1].lstrip("+-").isdigit()]:
        raise SystemExit(f"{path}, line {lines.index(bad[0]) + 1}: {bad[0]} is no path and label")
    return [(name, int(label)) for name, label in lines]


def make_files(root: Path, n_files: int, size_bytes: int, n_contents: int) -> list[str]:
    """Make files, some of them links to others, and their list, ``root``.txt; return the paths."""
    names = [f"{number // 1000}/{number}.bin" for number in range(n_files)]
    for number, path in enumerate(map(root.joinpath, names)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < n_contents:
            path.write_bytes(os.urandom(size_bytes))
        else:
            os.link(root / names[number % n_contents], path)
    root.with_suffix(".txt").write_text("".join(f"{name} 0\n" for name in names))
    return names


# --- checks that every loader delivered the same, at next to no cost while it is timed ------------


def fingerprint(batch: Sequence[Example]) -> int:
    """Return a checksum of the labels and of a few values of every example; takes 0.1 ms."""
    return checksum([(values.reshape(-1)[::4001], label) for values, label in batch])


def checksum(batch: Sequence[Example]) -> int:
    """Return a CRC-32 of all bytes of a mini-batch."""
    value = 0
    for values, label in batch:
        value = zlib.crc32(np.ascontiguousarray(values), value)
        value = zlib.crc32(int(label).to_bytes(8, "little", signed=True), value)
    return value
