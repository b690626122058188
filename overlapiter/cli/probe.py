"""Measures a staging disk, and what this process may use of its node."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from overlapiter.node import count_cores, kernel_text
from overlapiter.origins.origin import Original, OriginalFile
from overlapiter.store.extents import ExtentReader
from overlapiter.store.generation import can_punch, generation_of, prepare, segments_folder
from overlapiter.store.localfiles import owned, remove_folders
from overlapiter.store.outcome import Staged
from overlapiter.store.site import Run, Site
from overlapiter.store.stager import Stager
from overlapiter.store.store import Store, Wanted

from .crew import parts_of

_PIECE_BYTES = 4 << 20
#: A file of the data set is taken to be no larger where one is staged.
_MOST_SMALL_BYTES = 4 << 20
_FOLDER_PREFIX = "overlapiter.doctor-"
_MOST_BYTES = 1 << 30
_N_SMALL_FILES, _PART_FILES = 512, 8
#: File systems that many nodes share.
_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "panfs", "9p"}
_CGROUP = "/sys/fs/cgroup"


class DiskSpeed(NamedTuple):
    """What the staging disk does with a large file, and a store on it with a small one.

    To stage takes ``small_write_seconds`` and ``small_cpu_seconds``. A disk that ``has_holes``
    gives back the space of what is evicted from within a file.
    """

    write_bytes_per_second: float
    read_bytes_per_second: float
    small_bytes: int
    small_write_seconds: float
    small_cpu_seconds: float
    small_read_seconds: float
    evict_seconds: float
    has_holes: bool = True


class FileSystem(NamedTuple):
    """Where a directory lies; other nodes use it, too, if it is shared."""

    kind: str
    size_bytes: int
    free_bytes: int
    is_shared: bool = False
    is_ram: bool = False


class Node(NamedTuple):
    """What this process may use of its node; limits are 0 where there is none.

    ``load`` is how many processes wanted a core in the last minute, on average.
    """

    n_cores: int
    memory_bytes: int
    shm_bytes: int
    n_descriptors: int
    n_processes: int
    load: float


# --- the staging disk -----------------------------------------------------------------------------


@contextlib.contextmanager
def scratch(directory: str) -> Iterator[str]:
    """Give a folder in a staging directory, or beside it if that is not there. Raises OSError.

    What an earlier call left behind because it was killed is removed, too.
    """
    place = directory if os.path.isdir(directory) else os.path.dirname(directory)
    remove_folders(place, _FOLDER_PREFIX)
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=place) as folder, owned(folder):
        yield folder


def file_system_of(directory: str) -> FileSystem:
    """Say where an existing directory lies."""
    kind, longest = "unknown", -1
    real = os.path.join(os.path.realpath(directory), "")
    for line in kernel_text("/proc/self/mountinfo").splitlines():
        words = line.split(" ")
        place = os.path.join(words[4].replace("\\040", " "), "")
        if real.startswith(place) and len(place) >= longest:
            kind, longest = words[words.index("-") + 1], len(place)
    size_bytes, _, free_bytes = shutil.disk_usage(directory)
    is_shared = kind in _SHARED or kind.startswith("fuse.")
    return FileSystem(kind, size_bytes, free_bytes, is_shared, kind in ("tmpfs", "ramfs"))


def measure_disk(folder: str, small_bytes: int, seconds: float) -> DiskSpeed:
    """Measure a disk, in an empty folder of it, for about so long.

    Raises:
        StagingError: It cannot hold a store.
        OSError: It failed.
    """
    small_bytes = min(small_bytes, _MOST_SMALL_BYTES)
    prepare(folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        large = _large(file.fileno(), seconds / 2)
    small = _small(folder, small_bytes, seconds / 2)
    return DiskSpeed(*large, small_bytes, *small, can_punch(generation_of(folder)))


def _large(fd: int, seconds: float) -> tuple[float, float]:
    """Return the bytes per second of writing and reading a large file."""
    most_bytes = min(_MOST_BYTES, shutil.disk_usage(fd).free // 8)
    piece = os.urandom(_PIECE_BYTES)  # which no disk compresses
    started, size_bytes = time.monotonic(), 0
    while size_bytes < most_bytes and time.monotonic() - started < seconds / 2:
        size_bytes += os.write(fd, piece)
    os.fsync(fd)
    written, read_bytes, got = time.monotonic(), 0, 1
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    while got and time.monotonic() - written < seconds / 2:
        got = len(os.pread(fd, len(piece), read_bytes))
        read_bytes += got
    return size_bytes / (written - started), read_bytes / (time.monotonic() - written)


class _Memory:
    """An origin all files of which hold the same; it takes no time."""

    def __init__(self, size_bytes: int) -> None:
        self._data = os.urandom(size_bytes)

    def stat(self, _path: str = "") -> Original:
        return Original(len(self._data), 0)

    def open(self, _path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        return contextlib.nullcontext(self)

    def read(self, size_bytes: int) -> bytes:
        return self._data[:size_bytes]


def _small(folder: str, size_bytes: int, seconds: float) -> tuple[float, float, float, float]:
    """Return what staging a small file takes, and of it the CPU, reading it, and evicting it."""
    started, cpu_started = time.monotonic(), time.process_time()
    store = Store(Site(folder), folder, Run(1, {}))
    stager = Stager([store], _Memory(size_bytes), "never", lambda job: job(), lambda _text: None)
    answers: dict[int, Staged] = {}
    with contextlib.closing(stager), contextlib.closing(ExtentReader([folder])) as reader:
        for part in parts_of(range(_N_SMALL_FILES), _PART_FILES):
            if not answers or time.monotonic() < started + seconds:
                paths = [f"{folder}/{number}" for number in part]
                stager.stage([Wanted(store.key_of(path), path) for path in paths], answers.update)
        write_seconds = time.monotonic() - started
        cpu_seconds = time.process_time() - cpu_started
        extents = [answer.extent for answer in answers.values() if answer.extent]
        if not extents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
        _drop_caches(segments_folder(folder))
        reads = []
        for extent in random.sample(extents, len(extents)):
            started = time.monotonic()
            reader.is_right(extent)
            reads.append(time.monotonic() - started)
        started = time.monotonic()
        store.evict([extent.key for extent in extents])
        evict_seconds = time.monotonic() - started
    n = len(extents)
    return write_seconds / n, cpu_seconds / n, statistics.median(reads), evict_seconds / n


def _drop_caches(folder: str) -> None:
    """Have the files of a folder read from the disk when they are read next."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- the node -------------------------------------------------------------------------------------


def look_at_node() -> Node:
    """Look at the limits of this process."""
    shm_bytes = 0
    with contextlib.suppress(OSError):
        shm_bytes = shutil.disk_usage("/dev/shm").free
    facts = dict(line.split(":", 1) for line in kernel_text("/proc/meminfo").splitlines())
    memory_bytes = int(facts.get("MemAvailable", "0 kB").split()[0]) << 10
    most, used = (kernel_text(f"{_CGROUP}/memory.{name}") for name in ("max", "current"))
    if most.isdigit() and used.isdigit():
        memory_bytes = min(memory_bytes, max(0, int(most) - int(used)))
    limits = [resource.getrlimit(n)[0] for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    n_files, n_processes = (0 if limit == resource.RLIM_INFINITY else limit for limit in limits)
    load = os.getloadavg()[0]
    return Node(count_cores(), memory_bytes, shm_bytes, n_files, n_processes, load)
