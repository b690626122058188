"""URLs as names of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlapiter import Staging, local_path
from overlapiter.errors import OptionError
from overlapiter.sources import paths_below, source_root
from overlapiter.urls import has_plain_name, is_url, url_below


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/a.jpg", True),
        ("gs://bucket", True),
        ("zip://", True),
        ("/lustre/a.jpg", False),
        ("s3:/bucket", False),
        ("./s3://bucket/a", False),
    ],
)
def test_a_url_is_told_by_its_beginning(path: str, expected: bool) -> None:
    assert is_url(path) is expected


def test_whatever_paths_make_of_a_url_is_recognized(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    url, prefix = "s3://bucket/train/n01/a.jpg", "s3://bucket/train/"
    written = [
        url,
        str(Path(url)),
        os.path.abspath(url),
        os.path.join(".", url),  # an image dataset without a root
        os.path.realpath(url),  # Pillow, in some versions
    ]
    assert [url_below(prefix, path) for path in written] == [url] * len(written)


@pytest.mark.parametrize(
    "path", ["s3://bucket/test/a", "hs3://bucket/train/a", "/lustre/a", "s3://bucket/train", "a"]
)
def test_what_lies_elsewhere_is_not_below(path: str) -> None:
    assert url_below("s3://bucket/train/", path) is None


@pytest.mark.parametrize(
    "name", ["../a", "a/../../b", "./a", "a//b", "/etc/passwd", "a/", "a\0b", ".."]
)
def test_a_name_that_could_leave_the_directory_is_not_staged(name: str) -> None:
    url = f"s3://bucket/train/{name}"
    assert not has_plain_name("s3://bucket/train/", url)
    assert list(paths_below("s3://bucket/train", [url])) == []


def test_paths_below_a_url_come_as_they_were_written_and_whole() -> None:
    paths = ["s3://bucket/a b/ä.jpg", "s3:/bucket/..a", "s3://other/a", "/lustre/a"]
    assert list(paths_below("s3://bucket", paths)) == [
        ("s3://bucket/a b/ä.jpg", "s3://bucket/a b/ä.jpg"),
        ("s3:/bucket/..a", "s3://bucket/..a"),
    ]


@pytest.mark.parametrize(
    ("written", "root"),
    [
        ("s3://bucket/train/", "s3://bucket/train"),
        ("s3://bucket", "s3://bucket"),
        ("zip://", "zip://"),
        ("file:///", "file://"),
        ("/lustre/", "/lustre"),
    ],
)
def test_a_root_is_written_in_one_way(written: str, root: str) -> None:
    assert source_root(written) == root


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("zip://::s3://bucket/a.zip", "'fo'"),
        ("https://me:secret@host/data", "storage_options"),
        (Path("s3://bucket/train"), "pathlib"),
        ("", "is empty"),
    ],
)
def test_what_cannot_be_a_root_is_refused(source: object, text: str) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        Staging("/nvme", source=source)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_a_url_has_no_local_path_where_nobody_stages_it() -> None:
    with pytest.raises(OptionError, match="no local copy here"):
        local_path("s3://bucket/a.h5")


def test_the_options_of_a_source_are_not_shown() -> None:
    options = {"key": "me", "secret": "hush"}
    staging = Staging("/nvme", source="s3://bucket", storage_options=options)
    assert "hush" not in repr(staging)
    assert "key" not in repr(staging)
    assert hash(staging) == hash(Staging("/nvme", source="s3://bucket"))
    with pytest.raises(OptionError, match="is for URLs"):
        Staging("/nvme", source="/lustre", storage_options=options)
    with pytest.raises(OptionError, match="no mapping"):
        Staging("/nvme", source="s3://bucket", storage_options="hush")  # type: ignore[arg-type]
    for seconds in (-1, float("inf"), float("nan")):
        with pytest.raises(OptionError, match="retry_seconds"):
            Staging("/nvme", source="s3://bucket", retry_seconds=seconds)
