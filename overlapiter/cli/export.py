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
import errno
import os
import shutil
import stat
from collections import defaultdict
from typing import IO

from overlapiter.newfile import replaced
from overlapiter.store.extents import DamagedError, ExtentReader
from overlapiter.store.inventory import StagedFile
from overlapiter.urls import is_url
from overlapiter.words import count_words, size_words

from .console import CommandError, Names, Progress, error_words, tell
from .place import add_directory, chosen, listed, new_directory, only_one, opened

#: Some file systems round mtimes down, FAT to these nanoseconds.
_COARSEST_NS = 2 * 10**9
#: The errors of names that a disk cannot have, though others can.
_NO_NAMES = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}


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
        source = only_one(chosen(inventory, arguments))
        files = listed(inventory, [source], arguments, arguments.pattern)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(to)
            folders = {to}  # which may be a link
            reader = ExtentReader([inventory.directory])
            with contextlib.closing(reader), Progress(files.n_files) as shown:
                for file in files:
                    try:
                        is_new = _copy(file, to, reader, folders)
                        n_copied, n_found = n_copied + is_new, n_found + (not is_new)
                        size_bytes += file.extent.size * is_new
                    except DamagedError:
                        failed["damaged, or evicted meanwhile"].add(file.name)
                    except _RefusedError as error:
                        failed[str(error)].add(file.name)
                    except OSError as error:
                        if error.errno not in _NO_NAMES:
                            raise
                        failed[f"{error.strerror}"].add(file.name)
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


def _copy(file: StagedFile, to: str, reader: ExtentReader, folders: set[str]) -> bool:
    """Write a file below a directory, through no link; return False if it is there already.

    The folders that are known to be no links are noted.

    Raises:
        _RefusedError: Something else is in its place, or it would lie elsewhere.
        DamagedError: The copy is not what was staged.
        OSError: The disk failed.
    """
    if not {"", ".", ".."}.isdisjoint(file.name.split("/")):
        raise _RefusedError("no name of a file below TO")
    path = os.path.join(to, file.name)
    _make_folder(os.path.dirname(path), to, folders)
    is_dated = not is_url(file.source.root)  # else its mtime is a number for a version
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        is_same = not is_dated or 0 <= file.extent.mtime - found.st_mtime_ns < _COARSEST_NS
        if is_same and stat.S_ISREG(found.st_mode) and found.st_size == file.extent.size:
            return False
        raise _RefusedError("something else is there, and is left alone")
    with replaced(path) as target:
        if file.extent.is_whole:
            _copy_segment(reader.path_of(file.extent), file.extent.size, target)
        else:
            target.write(reader.read(file.extent))
        if is_dated:
            target.flush()
            os.utime(target.fileno(), ns=(file.extent.mtime, file.extent.mtime))
    return True


def _make_folder(path: str, to: str, folders: set[str]) -> None:
    if path in folders:
        return
    _make_folder(os.path.dirname(path), to, folders)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise _RefusedError(f"{os.path.relpath(path, to)} is no folder, and is left alone")
    folders.add(path)


def _copy_segment(path: str, size_bytes: int, target: IO[bytes]) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as copy:
        shutil.copyfileobj(copy, target)
    if target.tell() != size_bytes:
        raise DamagedError  # it was evicted meanwhile
