"""The inventory: what lies in a staging directory, whatever somebody put there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from overlapiter.staging.claim import Claims
from overlapiter.staging.folders import Folder
from overlapiter.staging.inventory import (
    Kind,
    Subdirectory,
    entries,
    foreign_entries,
    orphans,
    remove_empty_folders,
    subdirectories,
)
from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store
from tests.staging.processes import forked, without_locks


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("a/1.bin", "a/2.bin", "a/b/3.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 100)
    return folder


@pytest.fixture
def directory(tmp_path: Path, source: Path) -> Path:
    """Return a staging directory that holds all files of the source."""
    (tmp_path / "fast").mkdir()
    store = Store(str(tmp_path / "fast"), str(source), Room(str(tmp_path / "fast"), 10**6, 0))
    store.create()
    for path in source.rglob("*.bin"):
        assert store.stage(str(path)).outcome is Outcome.COPIED
    return tmp_path / "fast"


def only(directory: Path) -> Subdirectory:
    (sub,) = subdirectories(str(directory))
    return sub


def test_staged_files_are_listed_with_their_place_below_the_source(directory, source) -> None:
    sub = only(directory)
    assert sub.source == str(source)
    found = {entry.name: entry for entry in entries(sub)}
    assert found.keys() == {"a/1.bin", "a/2.bin", "a/b/3.bin"}
    assert all(entry.kind is Kind.FILE for entry in found.values())
    assert found["a/b/3.bin"].found.st_size == 900
    assert foreign_entries(str(directory)) == []


def test_links_are_listed_and_not_followed(directory, tmp_path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "mine").write_text("mine")
    files = Path(only(directory).path, "files")
    os.symlink(tmp_path / "precious", files / "a" / "folder")
    os.symlink(tmp_path / "precious" / "mine", files / "a" / "file")
    os.mkfifo(files / "pipe")
    kinds = {entry.name: entry.kind for entry in entries(only(directory))}
    assert len(kinds) == 6
    assert kinds["a/folder"] is kinds["a/file"] is Kind.LINK
    assert kinds["pipe"] is Kind.OTHER
    for entry in entries(only(directory)):
        entry.remove()
    remove_empty_folders(only(directory))
    assert (tmp_path / "precious" / "mine").read_text() == "mine"
    assert list(files.iterdir()) == []


def test_a_folder_of_files_that_is_a_link_leads_nowhere(directory, tmp_path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "mine").write_text("mine")
    files = Path(only(directory).path, "files")
    sub = only(directory)
    files.rename(tmp_path / "away")
    files.symlink_to(tmp_path / "precious")
    assert list(entries(sub)) == []
    assert subdirectories(str(directory)) == []


def test_what_is_not_ours_is_named(directory) -> None:
    (directory / "notes.txt").write_text("mine")
    (directory / "data-0123456789ab").mkdir()  # by its name it might be
    Path(only(directory).path, "stray").write_text("mine")
    foreign = foreign_entries(str(directory))
    assert foreign[:2] == ["data-0123456789ab", "notes.txt"]
    assert foreign[2:] == [f"{Path(only(directory).path).name}/stray"]


def test_an_entry_that_is_gone_is_removed_already(directory) -> None:
    (first, *_) = [entry for entry in entries(only(directory)) if entry.remove()]
    assert first.name
    assert list(entries(only(directory))) == []


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_an_owner_that_was_killed_had_copied_is_an_orphan_and_nothing_else(
    directory, monkeypatch, has_locks
) -> None:
    if not has_locks:
        without_locks(monkeypatch)
    sub = only(directory)
    claims = Claims(Folder(str(directory), os.path.basename(sub.path), "partial"))

    def claim_and_stop() -> None:
        with claims.hold("0123"):
            os.kill(os.getpid(), signal.SIGSTOP)

    pid = forked(claim_and_stop)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    with claims.hold("4567"):
        assert orphans(sub) == []
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found = [os.path.basename(path) for path in orphans(sub)]
        assert found[0].startswith("0123")
        assert len(found) == (1 if has_locks else 2)
        assert claims.sweep(lambda remove: remove()) == 1
        assert orphans(sub) == []
