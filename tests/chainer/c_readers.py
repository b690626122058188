"""Datasets that read files with libraries in C, and the files."""

from __future__ import annotations

import _io
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.chainer.iterator_datasets import Examples

try:  # as a script does at its top
    from cv2 import imread
except ImportError:
    imread = None

SMALL, LARGE = 40, 800  # pixels: a file of some kB, and one that has a segment of its own


def video_frame(path: str) -> Any:
    import cv2

    video = cv2.VideoCapture(path)
    found, frame = video.read()
    assert found
    video.release()
    assert video.open(path)
    return frame, video.read()[1]


def whole_descriptor(path: str) -> Any:
    fd = os.open(path, os.O_RDONLY)
    try:
        return np.frombuffer(os.read(fd, os.fstat(fd).st_size), np.uint8)
    finally:
        os.close(fd)


def rows_of_hdf5(path: str) -> Any:
    import h5py

    with h5py.File(name=path, mode="r") as file:
        assert isinstance(file, h5py.File)
        return file["rows"][:]


def rows_of_netcdf(path: str) -> Any:
    import netCDF4

    with netCDF4.Dataset(path) as file:
        assert isinstance(file, netCDF4.Dataset)
        return np.asarray(file["rows"][:])


def of(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module, which is imported when it is used."""

    def use(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return use


USES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cv2.imread": ("png", of("cv2", "imread")),
    "cv2.imread, imported by name": ("png", lambda p: imread(filename=p)),
    "cv2.imread, a Path": ("png", lambda p: imread(Path(p))),
    "cv2.imreadmulti": ("tif", lambda p: of("cv2", "imreadmulti")(p)[1][0]),
    "cv2.VideoCapture": ("avi", video_frame),
    "h5py.File": ("h5", rows_of_hdf5),
    "imageio": ("png", of("imageio.v3", "imread")),
    "imageio with OpenCV": ("png", lambda p: of("imageio.v3", "imread")(p, plugin="opencv")),
    "netCDF4.Dataset": ("nc", rows_of_netcdf),
    "np.loadtxt": ("csv", lambda p: np.loadtxt(p, np.uint8)),
    "np.genfromtxt, a Path": ("csv", lambda p: np.genfromtxt(Path(p), np.uint8)),
    "np.memmap": ("bin", lambda p: np.array(np.memmap(p, np.uint8, "r"))),
    "os.open": ("bin", whole_descriptor),
    "soundfile.read": ("wav", lambda p: of("soundfile", "read")(p)[0]),
    "soundfile.read, bytes": ("wav", lambda p: of("soundfile", "read")(os.fsencode(p))[0]),
    "tifffile": ("tif", of("tifffile", "imread")),
}
TORCH_USES: dict[str, tuple[str, Callable[[str], Any]]] = {
    name: ("png", lambda p, name=name: of("torchvision.io", name)(p).numpy())
    for name in ("read_image", "read_file", "decode_image")
}
KNOWN_USES = {**USES, **TORCH_USES}


def write_files(folder: Path, names: list[str]) -> None:
    """Write files that end in the size of an image and a format."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in names:
        *_, size, kind = name.split(".")
        pixels = random.integers(0, 256, (int(size), int(size), 3), dtype=np.uint8)
        _write(str(folder / name), kind, pixels)
        os.utime(folder / name, (10**9, 10**9))


def _write(path: str, kind: str, pixels: Any) -> None:
    if kind == "bin":
        pixels.tofile(path)
    elif kind == "csv":
        np.savetxt(path, pixels[0], "%d", header="x" * pixels.size)
    elif kind == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file["rows"] = pixels
    elif kind == "nc":
        import netCDF4

        with netCDF4.Dataset(path, "w") as dataset:
            for name, size in zip("xyz", pixels.shape, strict=True):
                dataset.createDimension(name, size)
            dataset.createVariable("rows", "u1", ("x", "y", "z"))[:] = pixels
    elif kind == "wav":
        of("soundfile", "write")(path, pixels.reshape(-1).astype(np.int16), 8000)
    elif kind == "avi":
        import cv2

        size = pixels.shape[1::-1]
        video = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 5.0, size)
        for _ in range(2):
            video.write(pixels)
        video.release()
    else:
        writer = ("tifffile", "imwrite") if kind == "tif" else ("cv2", "imwrite")
        of(*writer)(path, pixels)


class CReads(Examples):
    """Reads one file for each example, as the uses of names do."""

    def __init__(self, folder: Path | str, uses: list[str], names: list[str]) -> None:
        self.folder, self.uses, self.names = str(folder), uses, names

    def __len__(self) -> int:
        return len(self.names)

    def path_of(self, i: int) -> str:
        return os.path.join(self.folder, self.names[i])

    def get_example(self, i: int) -> tuple[Any, int]:
        return KNOWN_USES[self.uses[i]][1](self.path_of(i)), int(i)


class DeclaredCReads(CReads):
    """As :class:`CReads`, and says which file an example reads."""

    def source_paths(self, i: int) -> list[str]:
        return [self.path_of(i)]


class KeptRows(Examples):
    """Rows of HDF5 files that stay open; several examples are in each file, as in a list."""

    n_rows = 6

    def __init__(self, folder: Path, names: list[str], *, keeps_open: bool) -> None:
        self.folder, self.names, self.keeps_open = str(folder), names, keeps_open
        self._open: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.names) * self.n_rows

    def source_paths(self, i: int) -> list[str]:
        return [os.path.join(self.folder, self.names[i // self.n_rows])]

    def get_example(self, i: int) -> tuple[Any, int]:
        import h5py

        (path,) = self.source_paths(i)
        if not self.keeps_open:
            with h5py.File(path) as file:
                return file["rows"][i % self.n_rows], int(i)
        if path not in self._open:
            self._open[path] = h5py.File(path)
        return self._open[path]["rows"][i % self.n_rows], int(i)


class UnseenFiles(Examples):
    """Reads a file in C, as a library that nothing is known of."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = str(folder), names

    def __len__(self) -> int:
        return len(self.names)

    def get_example(self, i: int) -> int:
        with _io.open(os.path.join(self.folder, self.names[i]), "rb") as file:
            return len(file.read())


class UnseenFilesAfterOther(UnseenFiles):
    """As :class:`UnseenFiles`, and first reads a file elsewhere, as the import of a library may."""

    has_begun = False

    def get_example(self, i: int) -> int:
        if not self.has_begun:
            self.has_begun = True
            with open(os.devnull, "rb") as file:
                assert not file.read()
        return super().get_example(i)


class DeclaredUnseenFiles(UnseenFiles):
    """As :class:`UnseenFiles`, and says which file an example reads."""

    def source_paths(self, i: int) -> list[str]:
        return [os.path.join(self.folder, self.names[i])]


class UnseenTexts(UnseenFiles):
    """As :class:`UnseenFiles`, with paths in an array of NumPy."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        super().__init__(folder, names)
        self.folder = ""
        self.names = np.array([f"{folder}/{name}" for name in names])


class UnseenBytes(UnseenTexts):
    """As :class:`UnseenTexts`, as bytes."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        super().__init__(folder, names)
        self.folder, self.names = b"", self.names.astype("S")


class UnseenPaths(UnseenFiles):
    """As :class:`UnseenFiles`, with paths of another kind."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        super().__init__(folder, names)
        self.folder = folder
