"""Files that are made, copied or read as a whole."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def copy_files(paths: Iterable[str], source: str, target: str, n_streams: int) -> None:
    """Copy files before training, as users do by hand, ``n_streams`` at a time.

    Blocks until all are there. The paths are relative to both directories; folders are made.
    """
    paths = list(paths)
    for folder in {os.path.dirname(path) for path in paths}:
        os.makedirs(os.path.join(target, folder), exist_ok=True)

    def copy(path: str) -> None:
        with open(os.path.join(source, path), "rb", buffering=0) as file:
            content = file.read()
        with open(os.path.join(target, path), "wb", buffering=0) as file:
            file.write(content)

    with ThreadPoolExecutor(n_streams) as pool:
        list(pool.map(copy, paths))


def read_files(paths: Iterable[str], root: str) -> None:
    """Read every file once, so that the page cache holds it."""
    for path in paths:
        Path(root, path).read_bytes()


def read_pairs(path: str, count: int) -> list[tuple[str, int]]:
    """Return the first ``count`` pairs of a file of ``path label`` lines."""
    with open(path) as file:
        lines = [line.rsplit(maxsplit=1) for line in itertools.islice(file, count)]
    return [(name, int(label)) for name, label in lines]


def make_files(root: Path, n_files: int, size_bytes: int, n_contents: int) -> list[str]:
    """Make files of one size and, beside their folder, the list of pairs; return their paths.

    Args:
        root: Their folder; the list is ``root`` with the suffix ``.txt``.
        n_files: How many.
        size_bytes: Of each.
        n_contents: How many of them are different; the others are links to these.
    """
    names = [f"{number // 1000}/{number}.bin" for number in range(n_files)]
    for number, path in enumerate(map(root.joinpath, names)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < n_contents:
            path.write_bytes(os.urandom(size_bytes))
        else:
            os.link(root / names[number % n_contents], path)
    root.with_suffix(".txt").write_text("".join(f"{name} 0\n" for name in names))
    return names
