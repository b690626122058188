"""Copy staged files out, to a tree like that of their source, with its mtimes.

Each copy is compared with its checksum. What is there already is left alone: a second run goes on
where the first one was interrupted. Nothing outside TO is written, nor through links below it.

Examples:
  overlapiter export /nvme/me /scratch/imagenet
  overlapiter export /nvme/me /scratch/n03 'n03/*' --source /lustre/imagenet

exit code: 0, or 1 if not all files were copied, or none is staged
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import stat
from collections import defaultdict
from collections.abc import Iterator

from overlapiter.options import directory_path
from overlapiter.store.extents import Checksum, DamagedError, Extent, ExtentReader
from overlapiter.store.generation import segment_path
from overlapiter.store.inventory import Inventory, StagedFile
from overlapiter.urls import is_url

from .console import CommandError, Names, Progress, count_words, error_words, size_words
from .place import add_directory, chosen, only_one, opened

_CHUNK_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "copy")
    parser.add_argument("to", metavar="TO", help="a directory, which is made if it is missing")
    pattern = "copy only these, as for ls"
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*", help=pattern)


def run(arguments: argparse.Namespace) -> int:
    """Export; return the exit code."""
    to = directory_path(arguments.to)
    n_copied = n_found = size_bytes = 0
    failed: dict[str, Names] = defaultdict(Names)
    with opened(arguments.directory) as inventory:
        source = only_one(chosen(inventory, arguments.source))
        files = inventory.files([source], pattern=arguments.pattern)
        try:
            with contextlib.closing(_Tree(to, inventory)) as tree, Progress(files.n_files) as shown:
                for file in files:
                    try:
                        is_new = tree.add(file)
                        n_copied, n_found = n_copied + is_new, n_found + (not is_new)
                        size_bytes += file.extent.size * is_new
                    except DamagedError:
                        failed["damaged, or evicted meanwhile"].add(file.name)
                    except _RefusedError as error:
                        failed[str(error)].add(file.name)
                    shown.advance(file.extent.size)
        except OSError as error:
            raise CommandError(f"{to}: {error_words(error)}") from error
        finally:
            print(f"copied {count_words(n_copied, 'file')}, {size_words(size_bytes)}, to {to}")
    if n_found:
        print(f"found {count_words(n_found, 'file')}, there already")
    for reason, names in failed.items():
        print(f"not copied: {names} ({reason})")
    return 0 if files.n_files and not failed else 1


class _RefusedError(Exception):
    """A file is not written, for the reason that the text says."""


class _Tree:
    """Writes files below a directory, in folders that are opened one by one without links.

    Args:
        root: The directory; made if it is missing.
        inventory: Of what is staged.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: str, inventory: Inventory) -> None:
        self._segments = inventory.folder
        self._reader = ExtentReader([inventory.directory])
        with contextlib.suppress(FileExistsError):
            os.mkdir(root)
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close what is open."""
        self._reader.close()
        os.close(self._fd)

    def add(self, file: StagedFile) -> bool:
        """Write a file; return False if it is there already.

        Raises:
            _RefusedError: Something else is in its place, or it would lie elsewhere.
            DamagedError: The copy is not what was staged.
            OSError: The disk failed.
        """
        *folders, name = os.fsencode(file.name).split(b"/")
        if not {b"", b".", b".."}.isdisjoint([*folders, name]):
            raise _RefusedError("no name of a file below TO")
        with self._folder(folders) as folder_fd:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                is_same = is_url(file.source.root) or found.st_mtime_ns == file.extent.mtime
                if is_same and stat.S_ISREG(found.st_mode) and found.st_size == file.extent.size:
                    return False
                raise _RefusedError("something else is there, and is left alone")
            self._write(file, name, folder_fd)
        return True

    @contextlib.contextmanager
    def _folder(self, names: list[bytes]) -> Iterator[int]:
        """Give the descriptor of a folder, made if it is missing."""
        fd = os.dup(self._fd)
        try:
            for name in names:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
                above = fd
                fd = os.open(name, _DIRECTORY, dir_fd=above)
                os.close(above)
            yield fd
        except NotADirectoryError:  # nor is a link one
            raise _RefusedError(f"{os.fsdecode(name)} is no folder, and is left alone") from None
        finally:
            os.close(fd)

    def _write(self, file: StagedFile, name: bytes, folder_fd: int) -> None:
        new = os.fsencode(f".overlapiter-{secrets.token_hex(8)}")
        try:
            with open(os.open(new, _NEW, 0o666, dir_fd=folder_fd), "wb") as target:
                for piece in self._pieces(file.extent):
                    target.write(piece)
            if not is_url(file.source.root):  # whose mtime is a number for a version
                times = (file.extent.mtime, file.extent.mtime)
                os.utime(new, ns=times, dir_fd=folder_fd, follow_symlinks=False)
            os.rename(new, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder_fd)
            raise

    def _pieces(self, extent: Extent) -> Iterator[bytes]:
        """Give the bytes of a copy. Raises DamagedError, in the end if they are others."""
        if not extent.is_whole:
            yield self._reader.read(extent)
            return
        checksum = Checksum(extent.key, extent.size, extent.mtime)
        with contextlib.suppress(FileNotFoundError):  # it was evicted
            fd = os.open(segment_path(self._segments, extent.segment), _COPY)
            with open(fd, "rb", buffering=0) as copy:
                while piece := copy.read(_CHUNK_BYTES):
                    checksum.update(piece)
                    yield piece
        if checksum.value() != extent.checksum:
            raise DamagedError
