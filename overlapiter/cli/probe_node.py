"""Measures a node: its staging disk, and the limits of this process."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

_FOLDER_PREFIX = "overlapiter.doctor-"
_CHUNK_BYTES = 4 << 20
_MOST_BYTES = 1 << 30
_N_SMALL_FILES = 500
#: File systems that many nodes share.
_SHARED_TYPES = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "panfs", "9p"}
_RAM_TYPES = {"tmpfs", "ramfs"}
_CGROUP = "/sys/fs/cgroup"


class DiskSpeed(NamedTuple):
    """What the staging disk can do.

    Attributes:
        write_bytes_per_second: Of one large file, until it is on the disk.
        read_bytes_per_second: Of the same, from the disk.
        small_bytes: The size of the small files.
        small_write_seconds: Median time to stage one: write and rename.
        small_read_seconds: Median time to open and read one.
        small_cpu_seconds: What writing one takes of the processors.
    """

    write_bytes_per_second: float
    read_bytes_per_second: float
    small_bytes: int
    small_write_seconds: float
    small_read_seconds: float
    small_cpu_seconds: float


class Node(NamedTuple):
    """What this process may use of its node.

    Attributes:
        n_cores: Cores.
        memory_bytes: Memory that is available.
        shm_bytes: Free in ``/dev/shm``; 0 if there is none.
        n_descriptors: Files that a process may have open; 0 for no limit.
        n_processes: Processes and threads that the user may have; 0 for no limit.
        load: Processes that wanted a core in the last minute, on average.
    """

    n_cores: int
    memory_bytes: int
    shm_bytes: int
    n_descriptors: int
    n_processes: int
    load: float


class FileSystem(NamedTuple):
    """Where a directory lies."""

    kind: str
    size_bytes: int
    free_bytes: int

    @property
    def is_shared(self) -> bool:
        """Whether other nodes use it, too."""
        return self.kind in _SHARED_TYPES or self.kind.startswith("fuse.")

    @property
    def is_ram(self) -> bool:
        """Whether it is memory."""
        return self.kind in _RAM_TYPES


def look_at_node() -> Node:
    """Look at the limits of this process."""
    shm_bytes = 0
    with contextlib.suppress(OSError):
        shm = os.statvfs("/dev/shm")
        shm_bytes = shm.f_bavail * shm.f_frsize
    return Node(
        n_cores=_cores(),
        memory_bytes=_memory_bytes(),
        shm_bytes=shm_bytes,
        n_descriptors=_limit(resource.RLIMIT_NOFILE),
        n_processes=_limit(resource.RLIMIT_NPROC),
        load=os.getloadavg()[0],
    )


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _cores() -> int:
    n_cores = len(os.sched_getaffinity(0)) or os.cpu_count() or 1
    words = _text(f"{_CGROUP}/cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]):
        n_cores = min(n_cores, max(1, int(words[0]) // int(words[1])))
    return n_cores


def _memory_bytes() -> int:
    facts = dict(line.split(":", 1) for line in _text("/proc/meminfo").splitlines())
    available_bytes = int(facts.get("MemAvailable", "0 kB").split()[0]) << 10
    most, used = _text(f"{_CGROUP}/memory.max").strip(), _text(f"{_CGROUP}/memory.current").strip()
    if most.isdigit() and used.isdigit():
        available_bytes = min(available_bytes, max(0, int(most) - int(used)))
    return available_bytes


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def file_system_of(directory: str) -> FileSystem:
    """Say where an existing directory lies."""
    kind, longest = "unknown", -1
    real = os.path.join(os.path.realpath(directory), "")
    for line in _text("/proc/self/mountinfo").splitlines():
        words = line.split(" ")
        place = os.path.join(words[4].replace("\\040", " "), "")
        if real.startswith(place) and len(place) >= longest:
            kind, longest = words[words.index("-") + 1], len(place)
    disk = os.statvfs(directory)
    return FileSystem(kind, disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


@contextlib.contextmanager
def scratch(directory: str) -> Iterator[str]:
    """Give a folder in a staging directory; both are removed in the end unless they were there.

    What an earlier call left behind because it was killed is removed, too.

    Raises:
        OSError: It cannot be made.
    """
    is_new = not os.path.isdir(directory)
    if is_new:
        os.mkdir(directory, 0o700)
    try:
        for name in os.listdir(directory):
            if name.startswith(_FOLDER_PREFIX):
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
        folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=directory)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                os.rmdir(directory)


def measure_disk(folder: str, small_bytes: int, seconds: float) -> DiskSpeed:
    """Measure a disk, in an empty folder of it.

    Args:
        folder: The folder.
        small_bytes: The size of small files.
        seconds: For all of it, about.

    Raises:
        OSError: The disk failed.
    """
    write, read = _large(os.path.join(folder, "large"), seconds / 2)
    return DiskSpeed(write, read, small_bytes, *_small(folder, small_bytes, seconds / 2))


def _large(path: str, seconds: float) -> tuple[float, float]:
    free = os.statvfs(os.path.dirname(path))
    most_bytes = min(_MOST_BYTES, free.f_bavail * free.f_frsize // 8)
    piece = os.urandom(_CHUNK_BYTES)  # which no disk compresses
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        started, size_bytes = time.monotonic(), 0
        while size_bytes < most_bytes and time.monotonic() - started < seconds / 2:
            size_bytes += os.write(fd, piece)
        os.fsync(fd)
        written = time.monotonic()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_bytes = 0
        while time.monotonic() - written < seconds / 2:
            got = len(os.pread(fd, _CHUNK_BYTES, read_bytes))
            read_bytes += got
            if not got:
                break
        ended = time.monotonic()
    finally:
        os.close(fd)
    return size_bytes / (written - started), read_bytes / (ended - written)


def _small(folder: str, size_bytes: int, seconds: float) -> tuple[float, float, float]:
    data = os.urandom(min(size_bytes, _CHUNK_BYTES))
    deadline = time.monotonic() + seconds
    writes, reads = [], []
    cpu_seconds = time.process_time()
    for number in range(_N_SMALL_FILES):
        started = time.monotonic()
        if number and started > deadline:
            break
        path = os.path.join(folder, str(number))
        with open(path + "~", "xb", buffering=0) as file:
            file.write(data)
        os.rename(path + "~", path)
        writes.append(time.monotonic() - started)
    cpu_seconds = (time.process_time() - cpu_seconds) / len(writes)
    for number in range(len(writes)):
        with open(os.path.join(folder, str(number)), "rb", buffering=0) as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.monotonic()
        if number and started > deadline + seconds / 2:
            break
        with open(os.path.join(folder, str(number)), "rb", buffering=0) as file:
            file.read()
        reads.append(time.monotonic() - started)
    return statistics.median(writes), statistics.median(reads), cpu_seconds
