"""Strays: what no run uses, and nothing else, makes room."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapiter.staging import strays as strays_module
from overlapiter.staging.records import recorded_run
from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store
from overlapiter.staging.strays import Strays

SIZE_BYTES = 100


def staged(tmp_path: Path, name: str, n_files: int) -> Store:
    """Return the store of a source root with some files, all of them staged."""
    source, directory = tmp_path / name, tmp_path / "fast"
    source.mkdir(exist_ok=True)
    directory.mkdir(exist_ok=True)
    store = Store(str(directory), str(source), Room(str(directory), 10**6, 0))
    store.create()
    for number in range(n_files):
        (source / str(number)).write_bytes(bytes(SIZE_BYTES))
        assert store.stage(str(source / str(number))).outcome is Outcome.COPIED
    return store


def left(store: Store) -> list[str]:
    return sorted(path.name for path in Path(store.staged_path(store.source)).rglob("*"))


def test_files_that_no_run_uses_are_removed_one_by_one_and_their_bytes_given_back(tmp_path):
    own, other = staged(tmp_path, "own", 2), staged(tmp_path, "other", 3)
    strays = Strays(own)
    room = Room(own.directory, 5 * SIZE_BYTES, 0)
    for n_left in (2, 1, 0):
        assert not room.reserve(1)
        assert strays.evict_one(is_young=True)
        assert len(left(other)) == n_left
        assert room.reserve(SIZE_BYTES)
    assert not strays.evict_one(is_young=True)
    assert left(own) == ["0", "1"]


def test_files_of_a_run_that_goes_on_stay(tmp_path):
    own, other = staged(tmp_path, "own", 1), staged(tmp_path, "other", 2)
    facts = {"staging": {"source": other.source}}
    with recorded_run(own.directory, facts, dict, pytest.fail):
        assert not Strays(own).evict_one(is_young=True)
    assert Strays(own).evict_one(is_young=True)


def test_files_of_a_run_that_begins_meanwhile_stay(tmp_path, monkeypatch):
    own, other = staged(tmp_path, "own", 1), staged(tmp_path, "other", 3)
    strays = Strays(own)
    assert strays.evict_one(is_young=True)
    monkeypatch.setattr(strays_module, "_LOOK_AFTER_SECONDS", 0.0)
    strays_module_time = strays_module.time.monotonic() + 2
    monkeypatch.setattr(strays_module.time, "monotonic", lambda: strays_module_time)
    with recorded_run(own.directory, {"staging": {"source": other.source}}, dict, pytest.fail):
        assert not strays.evict_one(is_young=True)
    assert len(left(other)) == 2


def test_what_was_staged_lately_and_what_was_not_are_asked_for_apart(tmp_path, monkeypatch):
    own, other = staged(tmp_path, "own", 1), staged(tmp_path, "other", 2)
    assert not Strays(own).evict_one(is_young=False)
    monkeypatch.setattr(strays_module, "_YOUNG_SECONDS", 0.0)
    strays = Strays(own)
    assert not strays.evict_one(is_young=True)
    assert strays.evict_one(is_young=False)
    assert len(left(other)) == 1


def test_what_overlapiter_did_not_make_or_cannot_name_stays(tmp_path):
    own, other = staged(tmp_path, "own", 1), staged(tmp_path, "other", 1)
    victim = tmp_path / "precious"
    victim.write_bytes(b"x")
    files = Path(other.staged_path(other.source))
    (files / "0").unlink()
    (files / "link").symlink_to(victim)
    foreign = tmp_path / "fast" / "foreign-0123456789ab"
    foreign.mkdir()
    (foreign / "data").write_bytes(b"x")
    assert not Strays(own).evict_one(is_young=True)
    assert victim.exists()
    assert (foreign / "data").exists()
    assert (files / "link").is_symlink()


def test_after_a_search_that_found_nothing_the_disk_is_left_alone_for_a_while(
    tmp_path, monkeypatch
):
    strays = Strays(staged(tmp_path, "own", 1))
    assert strays.may_find_more
    for is_young in (True, False):
        assert not strays.evict_one(is_young=is_young)
    assert not strays.may_find_more
    staged(tmp_path, "other", 1)
    assert not strays.evict_one(is_young=True)
    monkeypatch.setattr(strays_module.time, "monotonic", lambda: 1e9)
    assert strays.evict_one(is_young=True)
