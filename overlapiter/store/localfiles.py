"""Files with paths, for libraries that open files themselves, as long as an example is read.

They lie in a folder that the process owns by a ``flock``::

    g0007/local/3f9a…/a.nii.gz     named as the source file: libraries choose a format by the name

A large file is a hard link to its segment, a small one a copy. What a killed process leaves is
removed with the garbage of the store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

from .extents import Extent, ExtentReader
from .generation import generation_of

_FOLDER = "local"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What a disk says that has no hard links, or no more of them.
_NO_LINK = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LocalFiles:
    """The files of one process. For one thread at a time.

    Args:
        directory: The staging directory that they lie in: that of large files, which are linked.
        reader: Reads what is staged.
    """

    def __init__(self, directory: str, reader: ExtentReader) -> None:
        self._directory = directory
        self._reader = reader
        self._folder = ""
        self._fd = -1
        self._paths: dict[int, str] = {}
        self._made: list[str] = []

    def path_of(self, extent: Extent, source_path: str) -> str:
        """Return the path of a file with the content of an extent, until :meth:`forget`.

        Raises DamagedError if the bytes are not those staged, OSError if it cannot be made.
        """
        path = self._paths.get(extent.key)
        if path is None:
            path = self._another_path(source_path)
            self._make(path, extent)
            self._paths[extent.key] = path
        return path

    def _another_path(self, source_path: str) -> str:
        try:
            path = self._new_path(source_path)
        except FileNotFoundError:  # the generation was thrown away, and the folder with it
            self.close()
            path = self._new_path(source_path)
        self._made.append(path)
        return path

    def _new_path(self, source_path: str) -> str:
        """Return a path of that name, in a folder of its own: two files may have the same name."""
        if not self._folder:
            self._make_folder()
        folder = os.path.join(self._folder, f"{len(self._made)}")
        with contextlib.suppress(FileExistsError):  # it is there since an example before this one
            os.mkdir(folder, 0o700)
        return os.path.join(folder, os.path.basename(source_path))

    def _make(self, path: str, extent: Extent) -> None:
        if extent.is_whole:
            segment = self._reader.path_of(extent)
            try:
                os.link(segment, path)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                shutil.copyfile(segment, path)
            return
        data = self._reader.read(extent)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)

    def _make_folder(self) -> None:
        parent = os.path.join(generation_of(self._directory), _FOLDER)
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent, 0o700)
        while not self._folder:
            folder = tempfile.mkdtemp(dir=parent)
            with contextlib.suppress(FileNotFoundError):  # taken for what a dead process left
                self._fd = os.open(folder, _FLAGS)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if os.path.exists(folder):
                    self._folder = folder
                else:
                    os.close(self._fd)

    def forget(self) -> None:
        """Remove the files; the folders stay for the next ones, if the disk is well."""
        try:
            for path in self._made:
                with contextlib.suppress(FileNotFoundError):  # it could not be made
                    os.unlink(path)
            self._made.clear()
            self._paths.clear()
        except OSError:  # what is left may be a link to a segment: nothing may be written there
            self.close()

    def close(self) -> None:
        """Remove the files and their folders."""
        self._paths.clear()
        self._made.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""
            os.close(self._fd)


def remove_left(generation: str) -> None:
    """Remove the files of processes that have ended.

    A folder that is not locked yet may go, too: who has made it makes another one.
    """
    remove_folders(os.path.join(generation, _FOLDER))


def remove_folders(parent: str, prefix: str = "") -> None:
    """Remove the folders in a directory whose names begin so, and that no process owns."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # there were never any, or the disk is sick
        names = os.listdir(parent)
    for path in [os.path.join(parent, name) for name in names if name.startswith(prefix)]:
        with contextlib.suppress(OSError), owned(path):  # it is gone, or no folder, or owned
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def owned(folder: str) -> Iterator[None]:
    """Own a folder for the length of a ``with`` block. Raises OSError if another process does."""
    fd = os.open(folder, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
