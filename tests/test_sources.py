"""Which files an example reads, as its dataset declares them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overlapiter.sources import declared_paths, is_below, known_paths, paths_below, source_roots


class Declaring:
    def source_paths(self, index):
        return [Path("/lustre") / f"{index}.jpg", "/lustre/labels.txt"]


class Wrapping:
    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)

    def __getitem__(self, index):
        return index


class Rooted(Wrapping):
    pass


@source_roots.register(Rooted)
def _(dataset):
    return {dataset.root}


@known_paths.register(Rooted)
def _(dataset, index):
    return [f"{dataset.root}/{index}"]


class RootedAndDeclaring(Rooted):
    def source_paths(self, index):
        return [*known_paths(self, index), "/lustre/mask"]


class Labels(list):
    """A list as any other, but for its name."""


@pytest.mark.parametrize(
    "held", [[1, 2], (1, 2), range(2), np.arange(2), np.arange(2).view(np.memmap), Labels([1])]
)
def test_what_is_held_in_memory_reads_no_file(held):
    assert declared_paths(held, 0) == []
    assert source_roots(held) == set()


def test_a_dataset_declares_its_files_as_texts():
    assert declared_paths(Declaring(), 3) == ["/lustre/3.jpg", "/lustre/labels.txt"]


@pytest.mark.parametrize("unknown", [object(), Wrapping(), {"a": 1}, "text"])
def test_of_anything_else_nobody_declares_the_files(unknown):
    assert declared_paths(unknown, 0) is None


def test_a_class_is_known_with_its_subclasses():
    assert declared_paths(type("Sub", (Rooted,), {})(root="/lustre"), 4) == ["/lustre/4"]


class ListOfNames(list):
    def __getitem__(self, index):
        return Path(super().__getitem__(index)).read_bytes()


@pytest.mark.parametrize("method", ["__getitem__", "__getitems__", "get_example"])
def test_of_a_subclass_that_reads_by_code_of_its_own_nobody_knows_the_files(method):
    reading = type("Reading", (Rooted,), {method: lambda *_: b"of another file"})
    assert declared_paths(reading(root="/lustre"), 4) is None
    assert declared_paths(type("Sub", (reading,), {})(root="/lustre"), 4) is None
    assert declared_paths(Rooted(root="/lustre", get_example=len), 4) is None
    assert declared_paths(ListOfNames(["/lustre/1"]), 0) is None


def test_what_a_dataset_declares_counts_more_than_what_is_known_of_its_class():
    assert declared_paths(RootedAndDeclaring(root="/lustre"), 4) == ["/lustre/4", "/lustre/mask"]


def test_roots_are_found_inside_wrappers_however_deep():
    inner = Wrapping(base=Rooted(root="/lustre/a"), mean=np.zeros(3), name="x", n=5)
    assert source_roots(Wrapping(one=inner, other=Rooted(root="/b"))) == {"/lustre/a", "/b"}


def test_a_dataset_that_refers_to_itself_is_searched_once():
    inner = Wrapping(base=Rooted(root="/lustre"))
    inner.parent = Wrapping(child=inner)
    inner.me = inner
    assert source_roots(inner) == {"/lustre"}
    assert source_roots(inner) == {"/lustre"}


def test_things_without_items_are_not_searched():
    class Config:
        dataset = Rooted(root="/lustre")

    assert source_roots(Wrapping(config=Config())) == set()


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/lustre/me/a.jpg", True),
        ("/lustre/me/x/../a.jpg", True),
        ("/lustre//me/a.jpg", True),
        ("//lustre/me/a.jpg", True),
        ("/lustre/./me/a.jpg", True),
        ("/lustre/me/.hidden", True),
        ("/lustre/me", False),
        ("/lustre/me2/a.jpg", False),
        ("/lustre/me/../a.jpg", False),
        ("/etc/passwd", False),
        ("lustre/me/a.jpg", False),
        ("/lustre/me/.cache/..a/b.", True),
        ("/lustre/me/.cache/../../a", False),
        ("/lustre/me/..", False),
    ],
)
def test_below_means_after_dots_are_resolved(path, below):
    assert is_below("/lustre/me/", path) == below
    assert bool(list(paths_below("/lustre/me", [path]))) == below


def test_paths_below_come_as_written_and_normalised(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = ["a.jpg", "../x", f"{tmp_path}/b/../../y", f"{tmp_path}/b/../c.jpg", "//etc"]
    assert list(paths_below(str(tmp_path), given)) == [
        ("a.jpg", f"{tmp_path}/a.jpg"),
        (f"{tmp_path}/b/../c.jpg", f"{tmp_path}/c.jpg"),
    ]
