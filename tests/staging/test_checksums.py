"""validate="checksum": what a disk did to a copy is found once in a run, and mended."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from overlapiter.staging.folders import subdirectory
from overlapiter.staging.store import Outcome, Store
from tests.staging.stores import is_same, made_store, name_of, rewrite


@pytest.fixture(params=["attributes", "no attributes"])
def store(request, source, staging, monkeypatch):
    if request.param == "no attributes":

        def refuse(*_arguments):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(os, "setxattr", refuse)
        monkeypatch.setattr(os, "getxattr", refuse)
    store = made_store(source, staging, validate="checksum")
    yield store
    store.close()


def damage(copy: Path, data: bytes) -> None:
    """Change a file as a disk does: its size and times stay."""
    before = copy.stat()
    with copy.open("r+b") as file:
        file.write(data[: before.st_size])
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert copy.stat().st_size == before.st_size


@pytest.mark.parametrize("data", [b"garbage", bytes(1000)], ids=["changed", "cut and padded"])
def test_a_damaged_copy_is_replaced_though_size_and_mtime_are_right(source, store, data):
    name = name_of(source, 5)
    copy = Path(store.stage(name).path)
    assert store.stage(name).outcome is Outcome.FOUND
    damage(copy, data)
    again = store.stage(name)
    assert again.outcome is Outcome.COPIED
    assert is_same(again, name)
    assert store.stage(name).outcome is Outcome.FOUND


def test_what_a_run_has_compared_is_not_read_again(source, store, monkeypatch):
    name = name_of(source, 5)
    stamp = store.stage(name).stamp
    reads = []
    real_read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: reads.append(fd) or real_read(fd, size))
    assert store.stage(name, stamp=stamp).outcome is Outcome.FOUND
    assert reads == []
    assert store.stage(name).outcome is Outcome.FOUND
    assert reads != []


def test_a_changed_source_is_noticed_too(source, store):
    name = name_of(source, 5)
    store.stage(name)
    rewrite(name, b"changed")
    again = store.stage(name)
    assert again.outcome is Outcome.COPIED
    assert is_same(again, name)


def test_a_copy_of_which_no_checksum_is_known_is_replaced_once(source, staging, store):
    name = name_of(source, 5)
    made_store(source, staging, validate="mtime").stage(name)
    assert [store.stage(name).outcome for _ in range(2)] == [Outcome.COPIED, Outcome.FOUND]


def test_the_other_ways_to_validate_read_no_copy(source, staging, store):
    name = name_of(source, 5)
    damage(Path(store.stage(name).path), b"garbage")
    for validate in ("mtime", "never"):
        assert made_store(source, staging, validate=validate).stage(name).outcome is Outcome.FOUND


def test_an_evicted_file_leaves_no_checksum(source, staging, store):
    name = name_of(source, 5)
    store.stage(name)
    assert store.evict(name) > 0
    base = Path(subdirectory(str(staging), str(source)))
    assert [path for path in base.rglob("*") if path.is_file()] == [base / "source.json"]


def test_a_link_in_the_place_of_a_checksum_is_not_followed(source, staging, tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    store = made_store(source, staging, validate="checksum")
    store.stage(name_of(source, 1))
    base = Path(subdirectory(str(staging), str(source)))
    (tmp_path / "precious").write_text("precious")
    (sums,) = (base / "sums").iterdir()
    sums.unlink()
    sums.symlink_to(tmp_path / "precious")
    monkeypatch.setattr(os, "getxattr", refuse)
    assert store.stage(name_of(source, 1)).outcome is Outcome.COPIED
    assert (tmp_path / "precious").read_text() == "precious"
    store.close()


def test_a_checksum_is_where_administrators_can_look_for_it(source, staging):
    store = made_store(source, staging, validate="checksum")
    copy = store.stage(name_of(source, 5)).path
    store.close()
    try:
        value = os.getxattr(copy, "user.overlapiter.blake2b")
    except OSError:
        pytest.skip("this file system has no attributes")
    done = subprocess.run(["b2sum", "-l", "128", copy], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == value.hex()
    assert isinstance(store, Store)
