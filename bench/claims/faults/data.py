"""What the workers read while they are killed: small real JPEG files.

They are cropped, flipped and made noisy by ``random`` and ``numpy.random``, so that only the same
seed gives the same bytes.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
from pathlib import Path

import numpy as np
from chainer.dataset import DatasetMixin
from PIL import Image

from bench.photographs import load_sources

N_FILES = 200
_FILE_SIDE, _IMAGE_SIDE = 64, 56


def make_files(folder: Path, n_files: int = N_FILES) -> None:
    """Write different JPEG files, cut from photographs, into a new folder."""
    folder.mkdir(parents=True)
    sources = load_sources()
    numbers = np.random.RandomState(0)
    for index in range(n_files):
        photograph = sources[index % len(sources)]
        left = numbers.randint(photograph.width - 4 * _FILE_SIDE)
        top = numbers.randint(photograph.height - 4 * _FILE_SIDE)
        box = (left, top, left + 4 * _FILE_SIDE, top + 4 * _FILE_SIDE)
        photograph.resize((_FILE_SIDE, _FILE_SIDE), box=box).save(folder / file_name(index))


def file_name(index: int) -> str:
    """Return the name of a file in its folder."""
    return f"{index:04d}.jpg"


class Augmented(DatasetMixin):
    """Gives ``(float32 image, int32 index)``, each time another one.

    Args:
        folder: What :func:`make_files` made.
        n_files: How many files there are.
    """

    def __init__(self, folder: str, n_files: int = N_FILES) -> None:
        self._folder = folder
        self._n_files = n_files

    def __setstate__(self, state: dict) -> None:
        """In a worker: have a hang show where it is."""
        self.__dict__.update(state)
        faulthandler.register(signal.SIGUSR1)

    def __len__(self) -> int:
        return self._n_files

    def source_paths(self, i: int) -> list[str]:
        """Return the files that an example reads."""
        return [os.path.join(self._folder, file_name(i))]

    def get_example(self, i: int) -> tuple:
        """Return one example, augmented."""
        with open(self.source_paths(i)[0], "rb") as file, Image.open(file) as image:
            pixels = np.asarray(image, np.float32)
        top, left = np.random.randint(0, _FILE_SIDE - _IMAGE_SIDE + 1, 2)
        crop = pixels[top : top + _IMAGE_SIDE, left : left + _IMAGE_SIDE]
        if random.random() < 0.5:
            crop = crop[:, ::-1]
        noisy = crop + np.random.normal(0, 4, crop.shape)
        return noisy.transpose(2, 0, 1).astype(np.float32), np.int32(i)


class Stuck(Augmented):
    """As :class:`Augmented`, until it is told to give nothing any more.

    Args:
        folder: Where the files are.
        pipe: A file that is held back: whoever opens it waits.
        is_source: Whether that is a file to stage, for which the prefetchers then wait, or one
            that is read besides, for which the file readers do.
        signs: A folder: when ``SIGN`` is there, it begins; a reader that waits leaves a file too.
    """

    SIGN = "begin"

    def __init__(self, folder: str, pipe: str, is_source: bool, signs: str) -> None:
        super().__init__(folder)
        self._pipe = pipe
        self._is_source = is_source
        self._signs = signs

    def source_paths(self, i: int) -> list[str]:
        """Return the files that an example reads, the pipe among them if it is one."""
        if self._is_source and os.path.exists(os.path.join(self._signs, self.SIGN)):
            return [self._pipe]
        return super().source_paths(i)

    def get_example(self, i: int) -> tuple:
        """Return an example, or wait until killed."""
        if os.path.exists(os.path.join(self._signs, self.SIGN)):
            Path(self._signs, f"reader-{os.getpid()}").touch()
            with open(self._pipe, "rb"):
                pass
        return super().get_example(i)
