"""Lists of files, as people have them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overlapiter.cli import filelist
from overlapiter.cli.console import CommandError
from overlapiter.cli.filelist import read_list

from .commands import overlapiter, staged_files


def listed(tmp_path: Path, text: str, labels: str = "auto") -> list[str]:
    (tmp_path / "list").write_text(text)
    return read_list(str(tmp_path / "list"), "/s", labels).paths


def test_pairs_are_told_from_names_with_spaces(tmp_path) -> None:
    assert listed(tmp_path, "a.jpg 3\nb.jpg\t-1\n") == ["/s/a.jpg", "/s/b.jpg"]
    assert listed(tmp_path, "a.jpg 3\nmy file.jpg\n# 2 b\n") == [
        "/s/a.jpg",
        "/s/my file.jpg",
        "/s/# 2 b",
    ]
    assert listed(tmp_path, "a.jpg 3\n", "no") == ["/s/a.jpg 3"]
    assert listed(tmp_path, "my file.jpg 3\n", "yes") == ["/s/my file.jpg"]


def test_a_list_is_normalised_and_each_file_named_once(tmp_path) -> None:
    assert listed(tmp_path, "b\n./a\n/s/x/../a\r\n\nb\n") == ["/s/b", "/s/a"]
    with pytest.raises(CommandError, match="cannot be read"):
        read_list(str(tmp_path), "/s")


def test_not_every_line_is_looked_up(tmp_path, monkeypatch) -> None:
    looks = []
    monkeypatch.setattr(os.path, "lexists", looks.append)
    (tmp_path / "list").write_text("".join(f"{n}.jpg {n}\n" for n in range(1000)))
    assert read_list(str(tmp_path / "list"), "/s").paths == [f"/s/{n}.jpg" for n in range(1000)]
    assert len(looks) == filelist._LOOKS


def test_a_mark_of_the_byte_order_loses_no_file(tmp_path) -> None:
    assert listed(tmp_path, "\ufeffa.jpg 0\nb.jpg 1\n") == ["/s/a.jpg", "/s/b.jpg"]


def test_a_line_without_a_label_among_pairs_is_named_by_file_and_line(tmp_path) -> None:
    with pytest.raises(CommandError, match=r"/list, line 3: 'b.jpg' is no `path label`"):
        listed(tmp_path, "a.jpg 0\n\nb.jpg\nc.jpg 2\n", "yes")


def test_names_of_any_bytes_are_text(tmp_path) -> None:
    (tmp_path / "list").write_bytes(b"caf\xe9.jpg 1\n")
    (path,) = read_list(str(tmp_path / "list"), "/s").paths
    assert os.fsencode(path) == b"/s/caf\xe9.jpg"


def test_one_odd_line_spoils_no_list_of_pairs(source, fast, listing, contents) -> None:
    with listing.open("a") as file:
        file.write("# end\n")
    done = overlapiter("stage", listing, "--source", source, "--to", fast)
    assert done.returncode == 1
    assert f"missing 1 file {source}/# end (No such file" in done.stdout
    assert staged_files(fast) == contents


@pytest.mark.parametrize("command", ["stage", "evict", "doctor"])
def test_names_of_several_lines_can_be_listed_with_null_bytes(source, fast, command) -> None:
    names = ["two\nlines", " blanks 7 ", "c0/0.bin"]
    for name in names[:2]:
        (source / name).write_bytes(b"odd")
    text = "\0".join(names) + "\0"
    words = ("-0", "-", "--source", source)
    done = overlapiter("stage", *words, "--to", fast, stdin=text)
    assert done.returncode == 0, done.stdout
    assert staged_files(fast).keys() == set(names)
    if command == "evict":
        done = overlapiter("evict", fast, *words, stdin=text)
        assert "removed 3 files" in done.stdout
    elif command == "doctor":
        done = overlapiter("doctor", *words, "--seconds", 0.5, "--json", stdin=text)
        assert [level["n_files"] for level in json.loads(done.stdout)["levels"]] == [3]


def test_a_name_that_ends_in_a_number_is_told_from_a_label(source, fast) -> None:
    (source / "photo 7").write_bytes(b"7")
    words = ("stage", "-", "--source", source, "--to", fast)
    done = overlapiter(*words, stdin="c0/0.bin 7\nphoto 7\n")
    assert done.returncode == 0, done.stdout
    assert staged_files(fast).keys() == {"c0/0.bin", "photo 7"}
