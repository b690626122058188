"""Datasets that read files in ways of their own: parts of arrays, HDF5, by a path."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from overlapiter import local_path
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles


class MappedRows(DeclaredFiles):
    """A row of an array that is mapped, not read: of each file another one."""

    def get_example(self, i: int) -> tuple[Any, Any]:
        array = np.load(os.path.join(self.folder, self.names[i]), mmap_mode="r")
        return np.array(array[i % len(array)]), np.int32(i)


class KeptOpen(SourceFiles):
    """A row of the array in the first file, which each process opens once and keeps open."""

    rows: Any = None

    def get_example(self, i: int) -> tuple[Any, Any]:
        if self.rows is None:
            self.rows = np.load(os.path.join(self.folder, self.names[0]), mmap_mode="r")
        return np.array(self.rows[i % len(self.rows)]), np.int32(i)


class HdfRows(DeclaredFiles):
    """A row of an array in an HDF5 file, which is opened by Python or, for odd rows, by HDF5."""

    def get_example(self, i: int) -> tuple[Any, Any]:
        import h5py

        path = os.path.join(self.folder, self.names[i])
        if i % 2:
            with h5py.File(local_path(path), "r") as file:
                return file["rows"][i % len(file["rows"])], np.int32(i)
        with open(path, "rb") as opened, h5py.File(opened, "r") as file:
            return file["rows"][i % len(file["rows"])], np.int32(i)


class LocalPaths(SourceFiles):
    """The bytes of a file that is opened by a path, and the path."""

    def get_example(self, i: int) -> tuple[Any, Any, Any]:
        path = local_path(os.path.join(self.folder, self.names[i]))
        fd = os.open(path, os.O_RDONLY)
        with open(fd, "rb") as file:
            data = np.frombuffer(file.read(), np.uint8)
        return data, np.frombuffer(os.fsencode(path), np.uint8), np.int32(i)
