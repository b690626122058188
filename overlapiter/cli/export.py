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
import shutil
import stat
from collections import defaultdict
from typing import IO

from overlapiter.store.extents import DamagedError, Extent, ExtentReader
from overlapiter.store.inventory import Inventory, StagedFile
from overlapiter.urls import is_url
from overlapiter.words import count_words, size_words

from .console import CommandError, Names, Progress, error_words, tell
from .place import add_directory, chosen, new_directory, only_one, opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "copy")
    parser.add_argument("to", metavar="TO", help="a directory, which is made if it is missing")
    pattern = "copy only these, as for ls"
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*", help=pattern)


def run(arguments: argparse.Namespace) -> int:
    """Export; return the exit code."""
    to = new_directory("TO", arguments.to)
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
            text = f"copied {count_words(n_copied, 'file')}, {size_words(size_bytes)}, to {to}"
            tell(arguments, text, n_copied=n_copied, size_bytes=size_bytes, to=to)
    if n_found:
        tell(arguments, f"found {count_words(n_found, 'file')}, there already", n_found=n_found)
    for reason, names in failed.items():
        text = f"not copied: {names} ({reason})"
        tell(arguments, text, not_copied=str(names), reason=reason)
    return 0 if files.n_files and not failed else 1


class _RefusedError(Exception):
    """A file is not written, for the reason that the text says."""


class _Tree:
    """Writes files below a directory, and through no link.

    Args:
        root: The directory; made if it is missing, and may be a link.
        inventory: Of what is staged.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: str, inventory: Inventory) -> None:
        self._root = root
        self._reader = ExtentReader([inventory.directory])
        with contextlib.suppress(FileExistsError):
            os.mkdir(root)
        self._folders = {root}  # that are known to be no links
        self.close = self._reader.close

    def add(self, file: StagedFile) -> bool:
        """Write a file; return False if it is there already.

        Raises:
            _RefusedError: Something else is in its place, or it would lie elsewhere.
            DamagedError: The copy is not what was staged.
            OSError: The disk failed.
        """
        if not {"", ".", ".."}.isdisjoint(file.name.split("/")):
            raise _RefusedError("no name of a file below TO")
        path = os.path.join(self._root, file.name)
        self._make_folder(os.path.dirname(path))
        is_dated = not is_url(file.source.root)  # else its mtime is a number for a version
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            is_same = found.st_mtime_ns == file.extent.mtime or not is_dated
            if is_same and stat.S_ISREG(found.st_mode) and found.st_size == file.extent.size:
                return False
            raise _RefusedError("something else is there, and is left alone")
        new = os.path.join(os.path.dirname(path), f".overlapiter-{secrets.token_hex(8)}")
        try:
            with open(new, "xb") as target:
                self._write(file.extent, target)
            if is_dated:
                os.utime(new, ns=(file.extent.mtime, file.extent.mtime))
            os.rename(new, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            raise
        return True

    def _make_folder(self, path: str) -> None:
        if path in self._folders:
            return
        self._make_folder(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            name = os.path.relpath(path, self._root)
            raise _RefusedError(f"{name} is no folder, and is left alone")
        self._folders.add(path)

    def _write(self, extent: Extent, target: IO[bytes]) -> None:
        """Write the bytes of a copy. Raises DamagedError if they are others, or gone."""
        if not extent.is_whole:
            target.write(self._reader.read(extent))
            return
        with (
            contextlib.suppress(FileNotFoundError),
            open(self._reader.path_of(extent), "rb") as copy,
        ):
            shutil.copyfileobj(copy, target)
        if target.tell() != extent.size:
            raise DamagedError  # it was evicted meanwhile
