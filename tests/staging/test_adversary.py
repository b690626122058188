"""Whatever paths a list names and whatever links lie about: nothing outside is touched."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapiter.sources import paths_below
from overlapiter.staging.folders import key_of, names_of, subdirectory
from overlapiter.staging.marks import write_mark
from overlapiter.staging.records import add_run
from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store
from tests.staging.stores import DAY_NS, is_same, made_store, name_of

NAMES = [
    "..", ".", "", "a", "b", "link", "out", "files", "partial", "sums", "source.json", "x" * 255,
    "x" * 256, "new\nline", "tab\t", "\0", "\udc80", "\ud800", "é", "e\u0301", "-rf", "~", "*", " ",
    "overlapiter.usage", "precious",
]  # fmt: skip
paths = st.lists(st.sampled_from(NAMES) | st.text(max_size=5), max_size=6).map("/".join)
#: Where something is planted, below the part of the source, and where it leads to.
plants = st.lists(
    st.tuples(
        st.sampled_from(
            ["files/a", "files/link", "files/link/b", "files/b", "sums", "files/a/b", "partial/KEY"]
        ),
        st.sampled_from(["outside", "outside/precious", "outside/a", "..", "/", "nowhere"]),
    ),
    max_size=4,
)


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return all that there is, without the times of access."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        found[str(path)] = (about.st_ino, about.st_mode, about.st_nlink, about.st_mtime_ns, content)
    return found


def make_source(folder: Path) -> None:
    for name in ("a/b", "a/out", "b", "link/b", "link/precious", "é", "new\nline", "partial/a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 10)
        os.utime(folder / name, ns=(DAY_NS, DAY_NS))


def make_outside(folder: Path) -> None:
    for name in ("precious", "a/b", "b", "source.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
        os.utime(folder / name, ns=(DAY_NS, DAY_NS))


def plant(base: Path, place: str, target: str, path: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        link = base / place.replace("KEY", key_of(path))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(base.parents[1] / target)


@settings(max_examples=40)
@given(entries=st.lists(paths | paths.map("/".__add__), max_size=6), links=plants)
def test_nothing_outside_changes_whatever_a_list_names_and_whatever_links_are_planted(
    entries, links
):
    with tempfile.TemporaryDirectory() as place:
        source, outside, fast = (Path(place, name) for name in ("source", "outside", "fast"))
        make_source(source)
        make_outside(outside)
        fast.mkdir()
        base = Path(subdirectory(str(fast), str(source)))
        absolute = [f"{source}/{entry}" for entry in entries]
        known = [f"{source}/{name}" for name in ("a/b", "b", "link/b", "link/precious")]
        for where, target in links:
            plant(base, where, target, known[0])
        store = Store(str(fast), str(source), Room(str(fast), 10**6, 0), validate="checksum")
        before = [snapshot(source), snapshot(outside)]
        with contextlib.suppress(OSError):
            store.create()
        for path in [*absolute, *entries, *known, *_below(source, entries)]:
            for act in (store.stage, store.evict, store.fetch, store.stage):
                with contextlib.suppress(OSError):
                    act(path)
        store.sweep()
        store.close()
        assert [snapshot(source), snapshot(outside)] == before
        assert sorted(os.listdir(place)) == ["fast", "outside", "source"]
        check_copies(base / "files", source)


def _below(source: Path, entries: list[str]) -> Iterator[str]:
    for entry in entries:
        with contextlib.suppress(ValueError):  # a path that no file can have
            yield from (absolute for _, absolute in paths_below(str(source), [entry]))


def check_copies(files: Path, source: Path) -> None:
    """All regular files that no link leads to are what the source has, and none is an alias."""
    for folder, _, names in os.walk(files):
        for copy in (Path(folder, name) for name in names):
            if not copy.is_symlink():
                original = source / copy.relative_to(files)
                assert copy.read_bytes() == original.read_bytes()
                assert not copy.samefile(original)
                assert copy.lstat().st_nlink == 1


@pytest.mark.parametrize(
    "path",
    ["/s/../x", "/s/a/../../x", "/s", "/s/", "/s//a", "/s/./a", "/s/a\0", "/t/a", "/s/\ud800"],
)
def test_a_path_that_leads_elsewhere_or_that_no_file_has_is_none(path, tmp_path):
    assert names_of("/s/", path) is None
    store = Store(str(tmp_path / "fast"), "/s", Room(str(tmp_path / "fast"), None, 0))
    assert store.stage(path).outcome is Outcome.SOURCE_FAILED
    assert store.peek(path) is None
    assert store.evict(path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_folder_is_neither_read_nor_written_through(
    source, store, tmp_path
):
    name = name_of(source, 1)
    (tmp_path / "outside").mkdir()
    outside = tmp_path / "outside" / "1.bin"
    outside.write_bytes(Path(name).read_bytes()[::-1])
    os.utime(outside, ns=(os.stat(name).st_mtime_ns, os.stat(name).st_mtime_ns))
    folder = Path(store.staged_path(name)).parent
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "outside")
    before = snapshot(tmp_path / "outside")
    for act in (store.peek, store.fetch, store.evict):
        with contextlib.suppress(OSError):
            assert not act(name)
    assert snapshot(tmp_path / "outside") == before
    assert folder.is_symlink()  # it is not ours to remove


def test_a_folder_that_becomes_a_link_while_the_store_is_in_use_is_not_followed(
    source, store, tmp_path
):
    assert store.stage(name_of(source, 1)).outcome is Outcome.COPIED
    folder = Path(store.staged_path(name_of(source, 1))).parent
    folder.rename(tmp_path / "moved")
    (tmp_path / "outside").mkdir()
    folder.symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        store.stage(name_of(source, 2))
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("part", ["files", "partial"])
def test_a_part_of_the_store_that_becomes_a_link_is_not_followed(source, store, tmp_path, part):
    assert store.stage(name_of(source, 1)).outcome is Outcome.COPIED
    base = Path(subdirectory(store.directory, store.source))
    (base / part).rename(tmp_path / "moved")
    (tmp_path / "outside").mkdir()
    (base / part).symlink_to(tmp_path / "outside")
    store.close()  # or a moment later
    with pytest.raises(NotADirectoryError):
        store.stage(name_of(source, 2))
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("where", ["partial", "usage"])
def test_a_hard_link_to_a_precious_file_is_taken_away_and_not_written_to(
    source, store, tmp_path, where
):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    planted = Path(store.directory, "overlapiter.usage")
    if where == "partial":
        base = Path(subdirectory(store.directory, store.source))
        planted = base / "partial" / key_of(name_of(source, 1))
    planted.unlink(missing_ok=True)
    planted.hardlink_to(precious)
    assert is_same(store.stage(name_of(source, 1)), name_of(source, 1))
    assert precious.read_text() == "precious"
    assert precious.stat().st_nlink == 1


def test_notes_are_not_written_to_a_hard_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("source.json", "overlapiter.runs.jsonl"):
        (tmp_path / name).hardlink_to(precious)
    write_mark(str(tmp_path), "/source")
    with pytest.raises(OSError, match="Too many links"):
        add_run(str(tmp_path), {}, "closed", {})
    assert precious.read_text() == "precious"


def test_a_pipe_in_the_place_of_a_partial_file_holds_nobody_up(source, store):
    base = Path(subdirectory(store.directory, store.source))
    os.mkfifo(base / "partial" / key_of(name_of(source, 1)))
    assert store.stage(name_of(source, 1)).outcome is Outcome.COPIED


def test_a_copy_of_another_user_is_not_trusted(source, store, monkeypatch):
    assert store.stage(name_of(source, 1)).outcome is Outcome.COPIED
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    other = Store(store.directory, store.source, Room(store.directory, None, 0))
    assert other.peek(name_of(source, 1)) is None


def test_a_staged_file_is_never_the_source_itself(source, staging):
    name = name_of(source, 1)
    store = made_store(source, staging)
    staged = Path(store.stage(name).path)
    assert not staged.samefile(name)
    staged.write_bytes(b"damaged")
    assert Path(name).read_bytes() != b"damaged"
    store.close()


def test_names_that_are_hard_to_write_are_staged_as_they_are(source, store):
    for name in ("new\nline", "\udcff", "é", "-rf", "*", "x" * 255, "partial", "files"):
        path = source / name
        path.write_text("content")
        assert is_same(store.stage(str(path)), str(path))
    (source / "long").mkdir()
    deep = source / "long"
    for _ in range(14):
        deep /= "y" * 250
        os.mkdir(deep)
    path = deep / "file"
    path.write_text("content")
    with contextlib.suppress(OSError):  # its copy may have no path that a program could open
        assert store.stage(str(path)).outcome in (Outcome.COPIED, Outcome.FOUND)
