"""Where a store lies below its staging directory, and which part of that is in use.

::

    /nvme/me/                    the user's staging directory
        overlapiter/             mode 0700
            g0007/               a generation: renamed and thrown away if its index is damaged
                index.sqlite     see :mod:`.index`
                segments/        see :mod:`.segments`
                reserve          1 MiB: given up for the index when the disk is full

Nothing here opens an index, so the trainer and file readers may use it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile

from overlapiter.errors import StagingError

from .segments import allocate, punch_hole

_ROOT = "overlapiter"
_INDEX = "index.sqlite"
_SEGMENTS = "segments"
_RESERVE = "reserve"
_ASIDE = "damaged-"
_GENERATION = re.compile(r"g([0-9]{4,})")
_FIRST = "g0001"
#: What the store before this one left: a tree of files for each source root.
_OLD_NAMES = ("overlapiter.usage", "overlapiter.users", "overlapiter.runs.jsonl")
_OLD_FOLDER = re.compile(r".*-[0-9a-f]{12}")
_BLOCK_BYTES = 4096
#: SQLite opens paths of up to 504 bytes; so long may that of a staging directory be.
_MOST_PATH_BYTES = 470
#: Of Linux, in <linux/btrfs.h>.
_BTRFS_IOC_FS_INFO = 0x8400941F


def root_of(directory: str) -> str:
    """Return the directory below a staging directory that holds all that overlapiter makes."""
    return os.path.join(directory, _ROOT)


def generation_of(directory: str) -> str:
    """Return the generation in use, or the one to make if there is none."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = [name for name in os.listdir(root_of(directory)) if _GENERATION.fullmatch(name)]
    return os.path.join(root_of(directory), max(names, key=_number, default=_FIRST))


def index_path(generation: str) -> str:
    """Return the path of the index of a generation."""
    return os.path.join(generation, _INDEX)


def segments_of(generation: str) -> str:
    """Return the folder of the segments of a generation."""
    return os.path.join(generation, _SEGMENTS)


def segments_folder(directory: str) -> str:
    """Return the folder of the segments in use; that of the first generation if the disk fails."""
    try:
        return segments_of(generation_of(directory))
    except OSError:  # who opens a segment there meets the same
        return segments_of(os.path.join(root_of(directory), _FIRST))


def make_generation(directory: str, gone: str = "") -> str:
    """Return the generation in use, made if there is none. Raises OSError if it cannot be.

    Args:
        directory: The staging directory.
        gone: One that was removed while this process had it open. It may be being removed still,
            so it is not filled again: the one to make has a higher number.
    """
    _make_private(directory)
    _make_own(root_of(directory))
    generation, number = generation_of(directory), _number(os.path.basename(gone))
    if _number(os.path.basename(generation)) <= number:
        generation = os.path.join(root_of(directory), f"g{number + 1:04}")
    _make_own(generation)
    _make_own(segments_of(generation))
    return generation


def _make_private(path: str) -> None:
    """Make a directory and its missing parents; one that is there may be a link, and another's."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_private(os.path.dirname(os.path.abspath(path)))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def discard(generation: str) -> None:
    """Throw a generation away. Processes that use it meanwhile notice, and take the next one."""
    root, name = os.path.split(generation)
    with contextlib.suppress(FileExistsError):  # first, so that its number is not given again
        os.mkdir(os.path.join(root, f"g{_number(name) + 1:04}"), 0o700)
    aside = tempfile.mkdtemp(prefix=_ASIDE, dir=root)
    with contextlib.suppress(FileNotFoundError):  # another process has renamed it
        os.rename(generation, os.path.join(aside, name))
    shutil.rmtree(aside, ignore_errors=True)


def clear(directory: str) -> None:
    """Remove what is left of generations whose processes were killed while throwing them away."""
    in_use = generation_of(directory)
    for name in os.listdir(root_of(directory)):
        path = os.path.join(root_of(directory), name)
        if name.startswith(_ASIDE):
            shutil.rmtree(path, ignore_errors=True)
        elif 0 < _number(name) < _number(os.path.basename(in_use)):
            discard(path)


def make_reserve(generation: str, size_bytes: int) -> None:
    """Set space aside for the index, if there is any and none is yet."""
    path = os.path.join(generation, _RESERVE)
    with contextlib.suppress(OSError):  # the disk is full
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not os.fstat(fd).st_blocks:
                allocate(fd, 0, size_bytes)
        except OSError:
            os.unlink(path)
        finally:
            os.close(fd)


def use_reserve(generation: str) -> bool:
    """Give up the space that was set aside; return whether there was some."""
    try:
        os.unlink(os.path.join(generation, _RESERVE))
    except FileNotFoundError:
        return False
    return True


def prepare(directory: str) -> None:
    """Make the directories of a store, and try whether their disk can do what it takes.

    Raises:
        StagingError: They cannot be made, belong to another user, or the disk has no locks.
    """
    n_bytes = len(os.fsencode(directory))
    if n_bytes > _MOST_PATH_BYTES:
        raise StagingError(
            directory,
            f"its path has {n_bytes} bytes; choose one of up to {_MOST_PATH_BYTES}",
        )
    try:
        generation = make_generation(directory)
        with tempfile.TemporaryFile(dir=generation) as file:
            _try_locks(directory, file.fileno())
    except StagingError:  # an OSError, too
        raise
    except OSError as error:
        raise StagingError(
            directory,
            f"cannot be made, or written ({error.strerror or error}); choose a directory that you "
            f"may write",
        ) from error


def can_punch(generation: str) -> bool:
    """Return whether the disk gives back the space of a hole; costs a file without a name.

    Btrfs makes holes, but keeps what it has allocated at once until nothing of that is left.
    """
    with tempfile.TemporaryFile(dir=generation) as file:
        with contextlib.suppress(OSError):  # only Btrfs answers
            fcntl.ioctl(file, _BTRFS_IOC_FS_INFO, bytearray(1024))
            return False
        try:
            punch_hole(file.fileno(), 0, _BLOCK_BYTES)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                return False
            raise
    return True


def old_store(directory: str) -> list[str]:
    """Return the paths that a version before this store has left in a staging directory."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            is_tree = _OLD_FOLDER.fullmatch(entry.name) and os.path.isfile(
                os.path.join(entry.path, "source.json")
            )
            if entry.name in _OLD_NAMES or is_tree:
                found.append(entry.path)
    return sorted(found)


def _number(name: str) -> int:
    match = _GENERATION.fullmatch(name)
    return int(match[1]) if match else 0


def _make_own(path: str) -> None:
    """Make a directory; refuse a link or another user's, and close one that others can enter."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is no directory", path)
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{path} belongs to another user", path)
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)


def _try_locks(directory: str, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except OSError as error:
        raise StagingError(
            directory,
            f"its file system has no locks ({error.strerror}); choose a directory on the node's "
            f"own disk, such as ext4, XFS or tmpfs (/tmp, /dev/shm)",
        ) from error
