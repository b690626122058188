"""What every test gets: a check that it left nothing behind, and photographs to load."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from PIL import Image

from overlapiter.words import size_words
from tests.support.leftovers import mapped_inodes, memory_files

#: A machine may be busy, or rest for seconds; what is left behind stays for ever.
GRACE_SECONDS = 30.0

#: What the tests that run at once write, and as much again.
ROOM_BYTES = 2 << 30

#: What drives the engine through Chainer or ChainerMN, which not every Python has.
NEED_CHAINER = [
    "bench",
    "chainer",
    "examples/test_imagenet.py",
    "examples/test_imagenet_chainermn.py",
    "examples/test_training.py",
    "peers/test_namespaces.py",
    "soak",
    "mpi",
    "remote/test_iterator.py",
]
collect_ignore = NEED_CHAINER if find_spec("chainer") is None else []

# Inherited by every process that a test starts: one whose parent died is still recognized by it.
MARK = f"OVERLAPITER_TESTS_{os.getpid()}"
# These two live as long as the process that started them.
HELPER = re.compile(r"from multiprocessing\.(forkserver|resource_tracker) import main")
# Processes that are none of ours, and never will be: to ask all of them each time takes long.
_foreign: set[int] = set()
# Daemon threads that a library started without giving them a name.
UNNAMED = re.compile(r"(Thread|Dummy)-\d+")


class Belongings(NamedTuple):
    """What exists because of this process at one moment, each thing with its description.

    Shared memory has its inode instead.
    """

    processes: dict[psutil.Process, str]
    threads: dict[threading.Thread, str]
    shared_memory: dict[str, int]
    descriptors: dict[tuple[int, str], str]

    @classmethod
    def now(cls) -> Belongings:
        return cls(_processes(), _threads(), memory_files(), _descriptors())

    def beyond(self, before: Belongings) -> Belongings:
        """Return what exists now and did not before."""
        pairs = zip(self, before, strict=True)
        return Belongings(*({k: v for k, v in a.items() if k not in b} for a, b in pairs))

    def describe(self) -> str:
        texts = [*self[:2], {name: name for name in self.shared_memory}, self.descriptors]
        kinds = zip(self._fields, texts, strict=True)
        return "\n".join(f"  {kind}: {text}" for kind, things in kinds for text in things.values())


def _processes() -> dict[psutil.Process, str]:
    pids = set(psutil.pids())
    _foreign.intersection_update(pids)
    found = {}
    for pid in pids - _foreign:
        try:
            process = psutil.Process(pid)
            if not _is_ours(process):
                _foreign.add(pid)
                continue
            command = " ".join(process.cmdline())
            # The children of the fork server share its command line, but not its parent.
            if not (HELPER.search(command) and process.ppid() == os.getpid()):
                found[process] = f"{process.pid} {process.status()} {command}"
        except psutil.NoSuchProcess as gone:
            if isinstance(gone, psutil.ZombieProcess):
                found[process] = f"{process.pid} zombie"
    return found


def _is_ours(process: psutil.Process) -> bool:
    """Say whether this process started another one, or one that did."""
    with contextlib.suppress(OSError):  # ended meanwhile, a zombie or somebody else's
        if f"{MARK}=".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
            return True
    return os.getpid() in (parent.pid for parent in process.parents())


def _threads() -> dict[threading.Thread, str]:
    threads = threading.enumerate()
    return {t: repr(t) for t in threads if not (t.daemon and UNNAMED.match(t.name))}


def _descriptors() -> dict[tuple[int, str], str]:
    helpers = {forkserver._forkserver._forkserver_alive_fd, resource_tracker._resource_tracker._fd}
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the one that listed the folder
            continue
        if number > 2 and number not in helpers:  # pytest exchanges the standard streams
            found[number, target] = f"{number} -> {target}"
    return found


def _held_by_others() -> set[int]:
    """Return the inodes of all that processes which are none of ours map."""
    ours = {os.getpid(), *(process.pid for process in _processes())}
    return mapped_inodes(pid for pid in psutil.pids() if pid not in ours)


def _leaks(before: Belongings) -> Belongings:
    """Return what is left after a test, once its objects are collected and its processes ended."""
    leaks = Belongings.now().beyond(before)
    if any(leaks):
        gc.collect()
    deadline = time.monotonic() + GRACE_SECONDS
    while any(leaks) and time.monotonic() < deadline:
        time.sleep(0.01)
        leaks = Belongings.now().beyond(before)
        held = _held_by_others() if leaks.shared_memory else set()
        for name in [name for name, inode in leaks.shared_memory.items() if inode in held]:
            del leaks.shared_memory[name]
    return leaks


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor or /dev/shm entry behind."""
    exemption = request.node.get_closest_marker("leaks_ok")
    if exemption:
        assert exemption.args or exemption.kwargs.get("reason"), "leaks_ok needs a reason"
        yield
        return
    before = Belongings.now()
    yield
    leaks = _leaks(before)
    for process in leaks.processes:  # the next test is not to suffer from it
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if any(leaks):
        pytest.fail(f"left behind:\n{leaks.describe()}", pytrace=False)


def pytest_configure() -> None:
    """Mark whatever is started from here on, also by what copies the environment when imported."""
    os.environ[MARK] = "1"
    # Who starts the tests in the background may have it ignored, and so would all that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """End at once on a disk so full that runs of the defaults would stage nothing."""
    base = session.config.option.basetemp
    folder = Path(base).parent if base else Path(tempfile.gettempdir())
    disk = shutil.disk_usage(folder)
    needed_bytes = disk.total // 20 + ROOM_BYTES  # 5 % stay free unless keep_free says otherwise
    if disk.free < needed_bytes:
        pytest.exit(
            f"the disk of {folder} has {size_words(disk.free)} free, and the tests need "
            f"{size_words(needed_bytes)}: 5% of it, which staging leaves free, and "
            f"{size_words(ROOM_BYTES)}. Free some, or set TMPDIR to a folder on another disk",
            returncode=1,
        )


def pytest_report_header() -> str | None:
    """Say what is left out."""
    left_out = ", ".join(f"tests/{name}" for name in collect_ignore)
    return f"without Chainer, which is not installed: {left_out} are left out" if left_out else None


def pytest_unconfigure() -> None:
    """Remove the mark."""
    os.environ.pop(MARK, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked gpu where the library that it names, else CuPy, or the GPU is missing."""
    marker = item.get_closest_marker("gpu")
    if marker:
        library = pytest.importorskip(*marker.args or ["cupy"])
        if not library.cuda.is_available():
            pytest.skip("needs a GPU")


def make_images(folder: Path, n: int, size: tuple[int, int] = (32, 32)) -> Path:
    """Write ``n`` different JPEG files of ``size`` (width, height) into ``folder``.

    Returns the list file, ``folder/list.txt``, whose lines are ``path label`` with the path
    relative to ``folder`` and labels from 0 to 9.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    lines = []
    for i in range(n):
        # Smooth, so that the file is small and decodes to nearly what was written.
        image = Image.fromarray(random.integers(0, 256, (3, 3, 3), dtype=np.uint8))
        image.resize(size, Image.Resampling.BILINEAR).save(folder / f"{i:05}.jpg")
        lines.append(f"{i:05}.jpg {i % 10}\n")
    listing = folder / "list.txt"
    listing.write_text("".join(lines))
    return listing


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 64 small JPEG files and their ``list.txt``; not to be written to."""
    folder = tmp_path_factory.mktemp("images")
    make_images(folder, 64)
    return folder
