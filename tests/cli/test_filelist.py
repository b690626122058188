"""Lists of files, as people have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlapiter.cli import filelist
from overlapiter.cli.console import CommandError
from overlapiter.cli.filelist import read_list


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
    monkeypatch.setattr(filelist, "_exists", lambda path: looks.append(path))
    (tmp_path / "list").write_text("".join(f"{n}.jpg {n}\n" for n in range(1000)))
    assert read_list(str(tmp_path / "list"), "/s").paths == [f"/s/{n}.jpg" for n in range(1000)]
    assert len(looks) == filelist._LOOKS


def test_names_of_any_bytes_are_text(tmp_path) -> None:
    (tmp_path / "list").write_bytes(b"caf\xe9.jpg 1\n")
    (path,) = read_list(str(tmp_path / "list"), "/s").paths
    assert os.fsencode(path) == b"/s/caf\xe9.jpg"
