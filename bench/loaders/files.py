"""Data sets of files."""

from __future__ import annotations

import os
from typing import IO, Any

import numpy as np
from PIL import Image

from bench.harness.machine import is_installed

_HEAD_BYTES = 64


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
        return np.frombuffer(file.read()[:_HEAD_BYTES], np.uint8)


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
