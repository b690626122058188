"""The FUSE file system with a delay: what it shows, what it costs, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.harness.isolated import CHECKOUT
from bench.harness.options import NotPossibleError
from bench.slow import mount as slowmount
from bench.slow.mount import SlowMount
from tests.bench.mounts import needs_fuse

OPEN_SECONDS = 0.1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a file of 300 kB, sixteen small ones in a folder, and a link."""
    folder = tmp_path / "source"
    (folder / "small").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(300_000))
    for number in range(16):
        (folder / "small" / str(number)).write_text(f"file {number}")
    (folder / "link").symlink_to("small/1")
    return folder


@pytest.fixture
def mount(source: Path, tmp_path: Path) -> Iterator[SlowMount]:
    """The folder, mounted with the waits of a store."""
    (tmp_path / "mount").mkdir()
    with SlowMount(source, tmp_path / "mount", OPEN_SECONDS, 1e9) as mounted:
        yield mounted


@needs_fuse
def test_it_shows_what_the_source_has(source, mount):
    shown = Path(mount.root)
    assert (shown / "large").read_bytes() == (source / "large").read_bytes()
    assert (shown / "link").read_text() == "file 1"
    for name in ("size", "mtime_ns", "mode", "ino"):
        found = (getattr(os.stat(root / "large"), f"st_{name}") for root in (shown, source))
        assert len(set(found)) == 1
    with pytest.raises(FileNotFoundError):
        (shown / "none").read_bytes()
    with pytest.raises(OSError, match="Read-only"):
        (shown / "large").write_bytes(b"")


@needs_fuse
def test_each_open_waits_and_the_waits_overlap(mount):
    paths = [Path(mount.root, "small", str(number)) for number in range(16)]
    start = time.monotonic()
    paths[0].read_bytes()
    assert time.monotonic() - start > 0.9 * OPEN_SECONDS
    for _attempt in range(20):  # on a busy machine threads may start one after the other
        start = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            contents = list(pool.map(Path.read_text, paths))
        assert contents == [f"file {number}" for number in range(16)]
        if time.monotonic() - start < 8 * OPEN_SECONDS:
            return
    pytest.fail("the waits of 16 opens never overlapped")


@needs_fuse
def test_reads_share_the_bandwidth(source, tmp_path):
    (tmp_path / "mount").mkdir()
    with SlowMount(source, tmp_path / "mount", 0.0, 3e6) as mount:
        with open(f"{mount.root}/large", "rb") as one, open(f"{mount.root}/large", "rb") as other:
            start = time.monotonic()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda file: file.read(), (one, other)))
            # The second finds in the page cache what the first has brought, at the best.
            assert time.monotonic() - start > 0.09
        assert mount.counts()["store_bytes"] >= 300_000


@needs_fuse
def test_a_stat_waits_where_the_kernel_does_not_know_the_answer(source, tmp_path):
    (tmp_path / "mount").mkdir()
    with SlowMount(source, tmp_path / "mount", 0.0, 1e9, stat_seconds=0.5) as mount:
        start = time.monotonic()
        os.stat(f"{mount.root}/large")
        assert time.monotonic() - start > 0.45
        for _attempt in range(20):  # each is answered at once, unless the machine is busy
            start = time.monotonic()
            os.stat(f"{mount.root}/large")
            if time.monotonic() - start < 0.45:
                return
        pytest.fail("the kernel knows the answer, and yet each stat waits")


@needs_fuse
def test_it_counts_what_crosses_it(mount):
    for name, n_times in (("large", 1), ("small/3", 2)):
        for _ in range(n_times):
            Path(mount.root, name).read_bytes()
    counts = mount.counts()
    assert counts == {"store_opens": 3, "store_bytes": 300_000 + 2 * len("file 3")}


@needs_fuse
def test_it_can_be_unmounted_while_a_file_is_open(mount):
    fd = os.open(f"{mount.root}/small/5", os.O_RDONLY)
    try:
        assert os.read(fd, 4) == b"file"
        mount.close()
        assert not os.path.ismount(mount.root)
    finally:
        with contextlib.suppress(OSError):  # the server is gone that it is to be closed by
            os.close(fd)
    mount.close()


@needs_fuse
def test_it_does_not_outlive_a_process_that_was_killed(source, tmp_path):
    (tmp_path / "mount").mkdir()
    program = "import sys; from bench.slow.mount import SlowMount; "
    program += "SlowMount(*sys.argv[1:3]).__enter__(); print('mounted', flush=True); "
    program += "sys.stdin.read()"
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "mount")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=CHECKOUT, text=True, **pipes) as process:
        assert process.stdout.readline() == "mounted\n"
        assert os.path.ismount(tmp_path / "mount")
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while os.path.ismount(tmp_path / "mount") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not os.path.ismount(tmp_path / "mount")


def test_what_is_missing_for_building_is_named_with_what_to_install(monkeypatch):
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/fuse" or exists(path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotPossibleError, match=r"pkg-config.*apt install.*emulated"):
        slowmount.build()


def test_without_fuse_in_the_kernel_the_emulation_is_named(monkeypatch):
    monkeypatch.setattr(os.path, "exists", lambda _path: False)
    with pytest.raises(NotPossibleError, match=r"no /dev/fuse .*--mount emulated"):
        slowmount.build()
