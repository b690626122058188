"""`overlapiter check`: everything that is wrong is found, and what may be is mended."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from .commands import overlapiter, partial_files, stage, staged_files
from .conftest import N_FILES


@pytest.fixture
def files(source: Path, fast: Path, listing: Path) -> Path:
    """Stage everything; return the folder of staged files."""
    stage(listing, "--source", source, "--to", fast)
    (found,) = fast.glob("lustre-*/files")
    return found


def damage(path: Path) -> None:
    """Change what is in a staged file, and nothing else that can be seen of it."""
    found = path.stat()
    path.write_bytes(bytes(found.st_size))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_nothing_is_wrong_with_what_was_staged(fast, files) -> None:
    done = overlapiter("check", fast)
    assert done.returncode == 0
    assert f"good {N_FILES} files" in done.stdout
    assert "nothing else is wrong" in done.stdout
    assert files.is_dir()


def test_bad_copies_are_found_and_removed_by_a_repair(source, fast, files, contents) -> None:
    (source / "c1" / "1.bin").write_bytes(b"changed")
    (source / "c2" / "2.bin").unlink()
    (files / "c0" / "3.bin").chmod(0o644)
    (files / "c1").chmod(0o755)
    (files.parent / "partial" / "left").touch(0o600)
    expected = (
        "1 file outdated, their sources have changed: c1/1.bin",
        "1 file without a source, which was removed: c2/2.bin",
        "1 file open to others, by their mode: c0/3.bin",
        f"1 folder open to others: {files.parent.name}/files/c1",
        "1 file left half-copied by jobs that were killed: left",
    )
    before = {path: path.lstat().st_ctime_ns for path in fast.rglob("*")}
    done = overlapiter("check", fast)
    assert done.returncode == 1
    for line in expected:
        assert f"wrong {line}" in done.stdout
    assert {path: path.lstat().st_ctime_ns for path in fast.rglob("*")} == before
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0, done.stdout
    for line in expected:
        assert f"repaired {line}" in done.stdout
    assert staged_files(fast).keys() == contents.keys() - {"c1/1.bin", "c2/2.bin"}
    assert stat.S_IMODE((files / "c0" / "3.bin").stat().st_mode) == 0o600
    assert stat.S_IMODE((files / "c1").stat().st_mode) == 0o700
    assert partial_files(fast) == []
    assert overlapiter("check", fast).returncode == 0


def test_damage_that_only_the_content_shows_needs_the_checksum(fast, files) -> None:
    damage(files / "c0" / "6.bin")
    assert overlapiter("check", fast).returncode == 0
    done = overlapiter("check", fast, "--checksum")
    assert done.returncode == 1
    assert "wrong 1 file corrupted, not what their sources hold: c0/6.bin" in done.stdout
    assert overlapiter("check", fast, "--checksum", "--repair").returncode == 0
    assert len(staged_files(fast)) == N_FILES - 1
    assert overlapiter("check", fast, "--checksum").returncode == 0


def test_what_overlapiter_did_not_make_is_named_and_stays(fast, files, tmp_path) -> None:
    (tmp_path / "precious").write_text("precious")
    (fast / "notes.txt").write_text("mine")
    (files / "c0" / "mine.txt").write_text("mine")  # with the mode of other people's files
    (files / "c0" / "link").symlink_to(tmp_path / "precious")
    (files / "folder").symlink_to(tmp_path)
    os.mkfifo(files / "pipe")
    for _ in range(2):
        done = overlapiter("check", fast, "--repair")
        assert done.returncode == 1
        assert "wrong 1 thing not made by overlapiter: left alone: notes.txt" in done.stdout
        assert "links, not made by overlapiter: left alone: c0/link, folder" in done.stdout
        assert "not made by overlapiter: left alone: c0/mine.txt, pipe" in done.stdout
        assert f"good {N_FILES} files" in done.stdout
    assert (files / "c0" / "mine.txt").read_text() == "mine"
    assert (files / "folder").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_staging_directory_within_is_nothing_wrong(source, fast, files, listing) -> None:
    assert (
        overlapiter("stage", listing, "--source", source, "--to", fast / "slower").returncode == 0
    )
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0
    assert "note in here is another staging directory, " in done.stdout
    assert done.stdout.count("slower") == 1
    assert "nothing else is wrong" in done.stdout
    assert len(staged_files(fast / "slower")) == len(staged_files(fast)) == N_FILES
    assert files.is_dir()


def test_a_wrong_count_of_bytes_is_found_and_mended(source, fast, files) -> None:
    (files / "c0" / "0.bin").unlink()  # by hand
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert "wrong the count of bytes in use says 30,435, but there are 29,435" in done.stdout
    assert overlapiter("check", fast, "--repair").returncode == 0
    assert overlapiter("check", fast).returncode == 0
    assert source.is_dir()


def test_checksums_go_with_their_files(source, fast, listing) -> None:
    words = ("stage", listing, "--source", source, "--to", fast, "--validate", "checksum")
    done = overlapiter(*words)
    assert done.returncode == 0, done.stderr
    assert overlapiter("check", fast, "--checksum").returncode == 0
    assert overlapiter("evict", fast, "--all").returncode == 0
    assert list(fast.glob("*/sums/*")) == []


def test_a_source_that_is_not_mounted_condemns_nothing(source, fast, files) -> None:
    source.rename(source.with_name("away"))
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 1
    assert f"the source {source} is not there: is it mounted?" in done.stdout
    assert len(staged_files(fast)) == N_FILES
    assert files.is_dir()


def test_a_lost_mark_is_noted_again_when_the_source_is_named(source, fast, files) -> None:
    mark = files.parent / "source.json"
    mark.unlink()
    done = overlapiter("check", fast)
    assert done.returncode == 1
    assert "nobody knows its source: give it as --source" in done.stdout
    assert overlapiter("check", fast, "--source", source, "--repair").returncode == 0
    assert mark.exists()
    assert overlapiter("check", fast).returncode == 0


def test_a_source_that_is_not_staged_is_explained(fast, files, tmp_path) -> None:
    done = overlapiter("check", fast, "--source", tmp_path / "other")
    assert done.returncode == 2
    assert "comes from" in done.stderr
    assert str(files.parents[1]) in done.stderr


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_directory_that_is_none_is_explained(tmp_path, kind) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("")
    elif kind == "empty":
        place.mkdir()
    done = overlapiter("check", place)
    assert done.returncode == 1
    assert done.stderr.startswith("overlapiter check: ")
    assert str(place) in done.stderr


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(300_000))


def test_a_copy_that_has_grown_is_removed_and_the_count_is_right(source, fast, files) -> None:
    grow(files / "c0" / "0.bin")
    done = overlapiter("check", fast, "--repair")
    assert done.returncode == 0, done.stdout
    assert "repaired 1 file outdated" in done.stdout
    done = overlapiter("check", fast)
    assert done.returncode == 0, done.stdout
    assert source.is_dir()


def test_a_count_that_is_too_low_is_mended(source, fast, files) -> None:
    source.rename(source.with_name("away"))  # so that the copy stays
    grow(files / "c0" / "0.bin")
    counts = "the count of bytes in use says 30,435, but there are 330,435"
    assert f"wrong {counts}" in overlapiter("check", fast).stdout
    assert f"repaired {counts}" in overlapiter("check", fast, "--repair").stdout
    source.with_name("away").rename(source)
    grow(files / "c1" / "1.bin")
    assert overlapiter("check", fast, "--repair").returncode == 0
    assert overlapiter("check", fast).returncode == 0
