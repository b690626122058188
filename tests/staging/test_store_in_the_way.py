"""What lies in the way of a store: links, modes, other sources. It follows and shares nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from overlapiter.errors import StagingError
from overlapiter.staging import claim as claim_module
from overlapiter.staging.folders import subdirectory
from overlapiter.staging.store import Outcome
from tests.staging.stores import DAY_NS, is_same, made_store, name_of, rewrite


def test_a_link_in_the_place_of_a_staged_file_is_replaced_and_not_followed(source, store, tmp_path):
    name = name_of(source, 1)
    staged = Path(store.stage(name).path)
    staged.unlink()
    for target in (tmp_path / "precious", Path(name)):  # the latter would even look valid
        (tmp_path / "precious").write_text("precious")
        staged.unlink(missing_ok=True)
        staged.symlink_to(target)
        assert store.stage(name).outcome is Outcome.COPIED
        assert not staged.is_symlink()
        assert (tmp_path / "precious").read_text() == "precious"


def test_a_link_in_the_place_of_a_partial_file_is_not_followed(source, store, tmp_path):
    (tmp_path / "precious").write_text("precious")
    seen = []
    try_lock = claim_module.try_lock
    link = "/proc/self/fd/{}".format
    claim_module.try_lock = lambda fd: seen.append(os.readlink(link(fd))) or try_lock(fd)
    try:
        store.stage(name_of(source, 1))
    finally:
        claim_module.try_lock = try_lock
    rewrite(name_of(source, 1), b"changed")
    os.symlink(tmp_path / "precious", seen[0])
    with pytest.raises(OSError, match="symbolic links"):
        store.stage(name_of(source, 1))
    assert store.sweep() == 0
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["", "files", "partial"])
def test_a_directory_that_is_a_link_is_refused(source, staging, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    place = Path(subdirectory(str(staging), str(source)), name)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StagingError, match="a link"):
        made_store(source, staging)


def test_a_directory_that_cannot_be_made_is_told(source, staging):
    Path(subdirectory(str(staging), str(source))).write_text("in the way")
    with pytest.raises(StagingError, match="choose another directory"):
        made_store(source, staging)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_may_look_into_the_staging_directory(source, staging, umask):
    before = os.umask(umask)
    try:
        store = made_store(source, staging)
        staged = store.stage(name_of(source, 1))
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in staging.rglob("*")}
    assert len(modes) == 8
    assert modes.pop(staging / "overlapiter.usage") == 0o600
    assert modes.pop(Path(staged.path)) == 0o600
    assert modes.pop(Path(subdirectory(str(staging), str(source)), "source.json")) == 0o600
    assert set(modes.values()) == {0o700}


def test_a_directory_that_others_could_write_is_closed_to_them(source, staging):
    base = Path(subdirectory(str(staging), str(source)))
    (base / "files").mkdir(parents=True)
    base.chmod(0o777)
    made_store(source, staging)
    assert stat.S_IMODE(base.stat().st_mode) == 0o700


def test_equal_paths_of_two_sources_do_not_meet(staging, tmp_path):
    stores = []
    for parent in ("one", "other"):
        source = tmp_path / parent / "images"
        source.mkdir(parents=True)
        (source / "a.bin").write_text(parent)
        os.utime(source / "a.bin", ns=(DAY_NS, DAY_NS))
        stores.append((made_store(source, staging), str(source / "a.bin")))
    for _ in range(2):
        for store, name in stores:
            assert is_same(store.stage(name), name)


def test_the_root_of_everything_can_be_a_source(source, staging):
    store = made_store(Path("/"), staging)
    staged = store.stage(name_of(source, 1))
    assert staged.path.startswith(subdirectory(str(staging), "/") + "/files/")
    assert is_same(staged, name_of(source, 1))
