"""Measures a slow store, a staging disk, and what this process may use of its node."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from overlapiter.node import count_cores
from overlapiter.origins.origin import LocalOrigin, Origin, OriginalFile
from overlapiter.store.extents import Extent, ExtentReader, checksum_of
from overlapiter.store.generation import can_punch, generation_of, prepare, segments_folder
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store, Wanted

from .crew import Crew, Part, parts_of
from .origins import WatchedOrigin

READS_IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128)
#: Reads that each thread is to do at a level, where there are enough files.
_LEAST_ROUNDS = 4
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 200_000
_TIMEOUT_SECONDS = 10.0
_FOLDER_PREFIX = "overlapiter.doctor-"
_MOST_BYTES = 1 << 30
_N_SMALL_FILES, _PART_FILES = 512, 8
#: File systems that many nodes share, and those that are memory.
_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "panfs", "9p"}
_RAM = {"tmpfs", "ramfs"}
_CGROUP = "/sys/fs/cgroup"


class Level(NamedTuple):
    """What so many reads in flight brought: files, bytes, and how long it took.

    Attributes:
        n_reads: Reads in flight.
        latency_seconds: Median from the request to open a file to its first bytes.
        cpu_seconds: What it took of the processors.
    """

    n_reads: int
    n_files: int
    n_bytes: int
    seconds: float
    latency_seconds: float
    cpu_seconds: float

    @property
    def files_per_second(self) -> float:
        """How many files came in a second."""
        return self.n_files / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """How many bytes came in a second."""
        return self.n_bytes / self.seconds

    @property
    def file_bytes(self) -> float:
        """How large a file was, on average."""
        return self.n_bytes / max(self.n_files, 1)


class DiskSpeed(NamedTuple):
    """What the staging disk can do: with one large file, and with small ones in a store.

    Attributes:
        small_bytes: The size of the small files.
        small_write_seconds: To stage one, its source apart.
        small_read_seconds: Median time to read one.
        small_cpu_seconds: What staging one takes of the processors.
        evict_seconds: To evict one.
        has_holes: Whether the disk gives back the space of what is evicted from within a file.
    """

    write_bytes_per_second: float
    read_bytes_per_second: float
    small_bytes: int
    small_write_seconds: float
    small_read_seconds: float
    small_cpu_seconds: float
    evict_seconds: float = 0.0
    has_holes: bool = True


class FileSystem(NamedTuple):
    """Where a directory lies."""

    kind: str
    size_bytes: int
    free_bytes: int

    @property
    def is_shared(self) -> bool:
        """Whether other nodes use it, too."""
        return self.kind in _SHARED or self.kind.startswith("fuse.")

    @property
    def is_ram(self) -> bool:
        """Whether it is memory."""
        return self.kind in _RAM


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


# --- the slow store -------------------------------------------------------------------------------


class UncachedOrigin(LocalOrigin):
    """Files below a mounted directory, none of which this node remembers. For reading alone."""

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        """Open a file, for the length of a ``with`` block."""
        file = open(path, "rb", buffering=0)  # noqa: SIM115  # the caller closes it
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file  # type: ignore[return-value]  # it is only read


def find_files(source: str, seconds: float) -> tuple[list[str], bool]:
    """Look for files below a mounted source, for so long at most; return if these are all."""
    deadline = time.monotonic() + seconds
    paths: list[str] = []
    for folder, _, names in os.walk(source):
        paths += [os.path.join(folder, name) for name in names]
        if time.monotonic() > deadline or len(paths) >= _MOST_FILES:
            return paths, False
    return paths, True


def levels_for(n_files: int) -> list[int]:
    """Return the numbers of reads in flight that so many files allow to measure."""
    found = list(READS_IN_FLIGHT)
    while len(found) > 1 and n_files < _LEAST_ROUNDS * sum(found):
        found.pop()
    return found


def measure_source(
    origin: Origin, paths: list[str], seconds: float, begin: Callable[[int], None]
) -> list[Level]:
    """Measure each number of reads in flight, on files that were not read before.

    Args:
        origin: Gives the files.
        paths: The files; their order becomes random.
        seconds: For all of it.
        begin: Called with the number of reads in flight before each.
    """
    random.shuffle(paths)
    todo, levels, numbers = iter(paths), [], levels_for(len(paths))
    for number in numbers:
        begin(number)
        share = max(len(paths) * number // sum(numbers), 1)
        files = list(itertools.islice(todo, share))
        level = _level(origin, files, number, seconds / len(numbers))
        levels += [level] if level else []
    return levels


def _level(origin: Origin, paths: Sequence[str], n_reads: int, seconds: float) -> Level | None:
    """Return what so many reads in flight bring; None if no file could be read."""
    cpu_seconds, started = time.process_time(), time.monotonic()
    deadline = started + seconds
    reads: list[tuple[float, int]] = []

    def read(part: Part[None]) -> None:
        for path in part:
            with contextlib.suppress(OSError):  # removed, or unreadable: another one
                reads.append(_read(watched, path, deadline))

    crew = Crew[None, None](read, n_reads, _TIMEOUT_SECONDS)
    watched = WatchedOrigin(origin, crew.ask, crew.told)
    parts = ({path: None} for path in paths if time.monotonic() < deadline)
    ended = started
    with contextlib.closing(crew.run(parts)) as done:
        for _ in done:
            ended = time.monotonic()
    if not reads:
        return None
    latencies, sizes = zip(*reads, strict=True)
    cpu_seconds = time.process_time() - cpu_seconds
    latency = statistics.median(latencies)
    return Level(n_reads, len(reads), sum(sizes), ended - started, latency, cpu_seconds)


def _read(origin: WatchedOrigin, path: str, deadline: float) -> tuple[float, int]:
    """Read a file, until the deadline if it is large; return its latency and how much was read."""
    started = time.monotonic()
    with origin.open(path) as file:
        n_bytes = len(file.read(_CHUNK_BYTES))
        latency_seconds = time.monotonic() - started
        while time.monotonic() < deadline and (piece := file.read(_CHUNK_BYTES)):
            n_bytes += len(piece)
    return latency_seconds, n_bytes


# --- the staging disk -----------------------------------------------------------------------------


@contextlib.contextmanager
def scratch(directory: str) -> Iterator[str]:
    """Give a folder in a staging directory; both are removed in the end unless they were there.

    What an earlier call left behind because it was killed is removed, too. Raises OSError.
    """
    is_new = not os.path.isdir(directory)
    if is_new:
        os.mkdir(directory, 0o700)
    try:
        for name in os.listdir(directory):
            if name.startswith(_FOLDER_PREFIX):
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=directory) as folder:
            yield folder
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # a job uses it by now
                os.rmdir(directory)


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


def measure_disk(folder: str, small_bytes: int, seconds: float) -> DiskSpeed:
    """Measure a disk, in an empty folder of it, for about so long.

    Raises:
        StagingError: It cannot hold a store.
        OSError: It failed.
    """
    prepare(folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        speeds = _large(file.fileno(), seconds / 2)
    small = _small(folder, small_bytes, seconds / 2)
    return DiskSpeed(*speeds, small_bytes, *small, can_punch(generation_of(folder)))


def _large(fd: int, seconds: float) -> tuple[float, float]:
    """Return the bytes per second of writing and reading a large file."""
    disk = os.fstatvfs(fd)
    most_bytes = min(_MOST_BYTES, disk.f_bavail * disk.f_frsize // 8)
    piece = os.urandom(4 * _CHUNK_BYTES)  # which no disk compresses
    started, size_bytes = time.monotonic(), 0
    while size_bytes < most_bytes and time.monotonic() - started < seconds / 2:
        size_bytes += os.write(fd, piece)
    os.fsync(fd)
    written = time.monotonic()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    read_bytes = 0
    while time.monotonic() - written < seconds / 2:
        read_bytes += (got := len(os.pread(fd, len(piece), read_bytes)))
        if not got:
            break
    return size_bytes / (written - started), read_bytes / (time.monotonic() - written)


def _small(folder: str, size_bytes: int, seconds: float) -> tuple[float, float, float, float]:
    """Return what staging a small file takes, reading it, the CPU of staging, and evicting it."""
    data = os.urandom(min(size_bytes, 4 * _CHUNK_BYTES))
    deadline, cpu_seconds = time.monotonic() + seconds, time.process_time()
    store = Store(Site(folder), folder, Run(1, {}))
    staged: list[Extent] = []
    reads = []
    try:
        for part in parts_of(range(_N_SMALL_FILES), _PART_FILES):
            if time.monotonic() > deadline and staged:
                break
            staged += _staged(store, [f"{folder}/{number}" for number in part], data)
        n_files = len(staged)
        write_seconds = (time.monotonic() - deadline + seconds) / n_files
        cpu_seconds = (time.process_time() - cpu_seconds) / n_files
        _drop_caches(segments_folder(folder))
        with contextlib.closing(ExtentReader([folder])) as reader:
            for extent in random.sample(staged, n_files):
                started = time.monotonic()
                reader.read(extent) if not extent.is_whole else reader.is_right(extent)
                reads.append(time.monotonic() - started)
        started = time.monotonic()
        store.evict([extent.key for extent in staged])
        evict_seconds = (time.monotonic() - started) / n_files
    finally:
        store.close()
    return write_seconds, statistics.median(reads), cpu_seconds, evict_seconds


def _drop_caches(folder: str) -> None:
    """Have the files of a folder read from the disk when they are read next."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _staged(store: Store, paths: Sequence[str], data: bytes) -> list[Extent]:
    """Stage files that all hold the same."""
    copies = []
    wanted = [Wanted(store.key_of(path), path) for path in paths]
    store.claim(wanted)
    for file in wanted:
        place = store.place(len(data))
        if place is None:
            raise OSError(28, os.strerror(28), store.site.directory)
        os.pwrite(place.segment.fd, data, max(place.start, 0))
        checksum = checksum_of(data, file.key, 0)
        number = place.segment.number
        extent = Extent(file.key, 0, number, place.start, len(data), 0, checksum)
        copies.append((file, place, extent))
    store.publish(copies, [])
    return [extent for *_, extent in copies]


# --- the node -------------------------------------------------------------------------------------


def look_at_node() -> Node:
    """Look at the limits of this process."""
    shm_bytes = 0
    with contextlib.suppress(OSError):
        shm = os.statvfs("/dev/shm")
        shm_bytes = shm.f_bavail * shm.f_frsize
    limits = [resource.getrlimit(n)[0] for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    n_files, n_processes = (0 if limit == resource.RLIM_INFINITY else limit for limit in limits)
    load = os.getloadavg()[0]
    return Node(count_cores(), _memory_bytes(), shm_bytes, n_files, n_processes, load)


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
