"""Reading in bulk, by the module in C: what it tells is what Python's own calls tell."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapiter.origins import bulk as bulk_module
from overlapiter.origins.bulk import Bulk, BulkRead, bulk_of
from overlapiter.origins.origin import LocalOrigin
from tests.support.leases import held_back
from tests.support.origins import MemoryOrigin

pytestmark = pytest.mark.skipif(
    bulk_module._bulk is None, reason="no compiler, or OVERLAPITER_NO_C"
)

MOST_BYTES = 1000


@pytest.fixture
def bulk() -> Iterator[Bulk]:
    bulk = Bulk(MOST_BYTES)
    bulk.resize(4)
    yield bulk
    bulk.resize(0)


def within_seconds(seconds: float, action: Callable[[], Any]) -> Any:
    """Return what an action returns; fails if it does not in time."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "it does not return"
    return results[0]


def collected(bulk: Bulk, n: int) -> dict[Any, BulkRead]:
    """Return the next ``n`` reads by their tokens."""
    reads: list[BulkRead] = []
    while len(reads) < n:
        reads += within_seconds(20, bulk.wait)
    assert len(reads) == n
    return {read.token: read for read in reads}


def test_what_was_read_is_not_copied_and_stays_while_it_is_held(tmp_path: Path) -> None:
    contents = {str(tmp_path / str(n)): bytes([n]) * MOST_BYTES for n in range(200)}
    for path, content in contents.items():
        Path(path).write_bytes(content)
    bulk = Bulk(MOST_BYTES)
    bulk.resize(4)
    held = {}
    for path in contents:  # what was let go of before is used again
        bulk.submit([(path, path), ("again", path)])
        held[path] = memoryview(collected(bulk, 2)[path].data)
    assert {type(view.obj).__name__ for view in held.values()} == {"Content"}
    assert {path: bytes(view) for path, view in held.items()} == contents
    assert all(view.readonly for view in held.values())


def test_small_files_come_whole_and_as_stat_has_them(bulk: Bulk, tmp_path: Path) -> None:
    contents = {
        str(tmp_path / f"{n}ä"): bytes([n % 256]) * (1 + n % MOST_BYTES) for n in range(300)
    }
    for path, content in contents.items():
        Path(path).write_bytes(content)
    os.utime(tmp_path / "7ä", ns=(0, -5))
    bulk.submit([(path, path) for path in contents])
    reads = collected(bulk, len(contents))
    for path, content in contents.items():
        read, original = reads[path], LocalOrigin().stat(path)
        assert (read.data, read.error, read.fd) == (content, 0, -1)
        assert (read.size_bytes, read.mtime_ns) == original
        assert 0 < read.began_ns <= read.ended_ns


def test_a_date_beyond_64_bits_is_that_of_the_origin(bulk: Bulk, tmp_path: Path) -> None:
    path = tmp_path / "future"
    path.write_bytes(b"x")
    os.utime(path, (0, 9_300_000_000))
    if path.stat().st_mtime < 9e9:
        pytest.skip("this file system has no such dates")
    bulk.submit([(0, str(path))])
    assert collected(bulk, 1)[0].mtime_ns == LocalOrigin().stat(str(path)).mtime_ns


def test_what_cannot_be_read_has_an_error_and_waits_for_nothing(bulk: Bulk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    paths = {
        "missing": str(tmp_path / "missing"),
        "folder": str(tmp_path),
        "fifo": str(tmp_path / "fifo"),
        "null": "a\0b",
        "no name": "\ud800",
        "empty": str(tmp_path / "empty"),
    }
    bulk.submit([*paths.items()])
    reads = collected(bulk, len(paths))
    assert {name: read.error for name, read in reads.items()} == {
        "missing": errno.ENOENT,
        "folder": errno.EISDIR,
        "fifo": errno.EINVAL,
        "null": errno.EINVAL,
        "no name": errno.EINVAL,
        "empty": 0,
    }
    assert {(read.data, read.fd) for read in reads.values()} == {(None, -1)}


def test_large_files_are_lent_and_count_as_read_until_they_are_given_back(
    bulk: Bulk, tmp_path: Path
) -> None:
    bulk.resize(2)
    for n in range(5):
        (tmp_path / f"{n}").write_bytes(bytes([n]) * (MOST_BYTES + 1))
    bulk.submit([(n, str(tmp_path / f"{n}")) for n in range(5)])
    seen: list[int] = []
    lent: list[BulkRead] = []
    while len(seen) < 5:
        lent += within_seconds(20, bulk.wait)
        time.sleep(0.05)
        lent += bulk.take()
        assert len(lent) <= 2
        for read in lent:
            assert (read.data, read.size_bytes) == (None, MOST_BYTES + 1)
            assert os.read(read.fd, 9999) == bytes([read.token]) * (MOST_BYTES + 1)
            with bulk.lent(read, str(tmp_path / f"{read.token}")) as file:
                assert file.stat().size_bytes == MOST_BYTES + 1
        seen += [read.token for read in lent]
        lent.clear()
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_a_file_that_does_not_answer_holds_up_those_asked_for_with_it_alone(
    bulk: Bulk, tmp_path: Path
) -> None:
    stuck, other = tmp_path / "stuck", tmp_path / "other"
    stuck.write_bytes(b"s")
    other.write_bytes(b"o")
    with held_back(stuck) as let_go:
        bulk.submit([("stuck", str(stuck)), ("beside", str(other))])
        bulk.submit([("other", str(other))])
        reads = within_seconds(20, bulk.wait)
        time.sleep(0.1)
        reads += bulk.take()
        assert {read.token for read in reads} == {"beside", "other"}
        let_go(stuck)
        assert collected(bulk, 1)["stuck"].data == b"s"


def test_threads_end_and_begin(bulk: Bulk, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    for n_threads in (1, 8, 2, 1, 4):
        bulk.resize(n_threads)
        assert bulk.has_threads
        bulk.submit([(n, str(tmp_path / "a")) for n in range(20)])
        assert len(collected(bulk, 20)) == 20
    bulk.resize(0)
    assert not bulk.has_threads


def test_only_mounted_directories_are_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bulk_of(LocalOrigin(), MOST_BYTES) is not None
    assert bulk_of(MemoryOrigin({}), MOST_BYTES) is None
    monkeypatch.setattr(bulk_module, "_bulk", None)
    assert bulk_of(LocalOrigin(), MOST_BYTES) is None


def test_a_look_is_what_stat_tells(bulk: Bulk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    names = ["fifo", "file", "link", "missing"]
    bulk.submit([(name, str(tmp_path / name)) for name in names], only_look=True)
    reads = collected(bulk, len(names))
    assert reads.pop("missing").error == errno.ENOENT
    for name, read in reads.items():
        assert (read.size_bytes, read.mtime_ns) == LocalOrigin().stat(str(tmp_path / name))
        assert (read.data, read.fd, read.error) == (None, -1, 0)
