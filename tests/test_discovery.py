"""The files of a dataset that declares none are found by asking it for the example."""

from __future__ import annotations

import builtins
import io
import sys
import threading
from pathlib import Path

import pytest

from overlapiter.openhook import local_path
from overlapiter.store.extents import Extent
from overlapiter.workers.prefetcher.discovery import Discovery
from tests.support.staged import copied, plan_for

_made: list[Discovery] = []


@pytest.fixture(autouse=True)
def plain_open():
    """Undo what a discovery does for the life of its process: replace open, keep segments open."""
    real, hook = builtins.open, sys.modules["overlapiter.openhook"]._current_hook
    yield
    for discovery in _made:
        discovery.close()
    _made.clear()
    builtins.open = io.open = real
    sys.modules["overlapiter.openhook"]._current_hook = hook


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for number in range(4):
        (tmp_path / "source" / f"{number}.txt").write_text(str(number))
    return tmp_path / "source"


class Asked:
    """A dataset whose examples are what a function of the index returns."""

    def __init__(self, give) -> None:
        self.give = give

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index):
        return self.give(index)


def read(path: Path) -> str:
    with open(path) as file:
        return file.read()


def discovery_of(source: Path, give) -> Discovery:
    _made.append(Discovery(Asked(give), plan_for(source.parent / "fast", source)))
    return _made[-1]


def discovered(source: Path, give) -> list[str]:
    """Discover file after file of example 1, each staged when it is found, as a prefetcher does."""
    discovery = discovery_of(source, give)
    found: list[str] = []
    staged: dict[int, Extent] = {}
    while len(found) < 9:
        path = discovery.next_path(1, staged)
        if path is None:
            break
        assert path not in found
        found.append(path)
        extent = copied(source.parent / "fast", source, path)
        staged[extent.key] = extent
    return found


def test_the_one_file_of_an_example_is_found(source):
    assert discovered(source, lambda i: read(source / f"{i}.txt")) == [str(source / "1.txt")]


def test_nothing_behind_the_open_is_run(source):
    ran = []

    def give(index):
        ran.append("before")
        text = read(source / f"{index}.txt")
        ran.append("after")
        return text

    assert discovery_of(source, give).next_path(2, {}) == str(source / "2.txt")
    assert ran == ["before"]


def test_several_files_are_found_one_by_one_even_if_a_name_is_in_another_file(source):
    (source / "1.txt").write_text("3.txt")

    def give(index):
        return read(source / read(source / f"{index}.txt")) + read(source / "2.txt")

    assert discovered(source, give) == [str(source / f"{n}.txt") for n in (1, 3, 2)]


def test_with_what_stages_them_all_files_are_found_in_one_run_up_to_one_without_a_copy(source):
    found = []
    staged: dict[int, Extent] = {}

    def give(index):
        found.append("run")
        return [read(source / f"{n}.txt") for n in (index, 3, 2, 0)]

    def stage(path):
        found.append(Path(path).name)
        if path.endswith("2.txt"):
            return False
        extent = copied(source.parent / "fast", source, path)
        staged[extent.key] = extent
        return True

    assert discovery_of(source, give).next_path(1, staged, stage) == str(source / "2.txt")
    assert found == ["run", "1.txt", "3.txt", "2.txt"]


def test_what_staging_raises_is_no_error_of_the_dataset(source):
    def stage(path):
        assert read(source / "2.txt") == "2"  # what stages a file opens it
        raise ValueError(path)

    discovery = discovery_of(source, lambda i: read(source / f"{i}.txt"))
    with pytest.raises(ValueError, match=r"1\.txt"):
        discovery.next_path(1, {}, stage)
    assert discovery.next_path(1, {}) == str(source / "1.txt")


def test_a_file_opened_twice_is_found_once(source):
    def give(index):
        return read(source / f"{index}.txt") + read(source / f"{index}.txt")

    assert discovered(source, give) == [str(source / "1.txt")]


def test_what_is_left_half_made_says_nothing_when_it_is_deleted(source, monkeypatch):
    class Reader:
        def __init__(self, index):
            self.file = open(source / f"{index}.txt")  # noqa: SIM115  # that is the point

        def __del__(self):
            self.file.close()

    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    assert discovered(source, lambda index: Reader(index).file.name) == [str(source / "1.txt")]
    assert said == []
    assert sys.unraisablehook == said.append


def test_an_example_that_opens_nothing_below_the_source_has_no_file(source):
    (source.parent / "other.txt").write_text("x")
    assert discovered(source, lambda _: read(source.parent / "other.txt")) == []


def test_a_relative_path_is_meant_from_where_the_dataset_opens_it(source, monkeypatch):
    monkeypatch.chdir(source.parent)
    discovery = discovery_of(source, lambda i: read(f"source/../source/{i}.txt"))
    assert discovery.next_path(0, {}) == str(source / "0.txt")


def test_user_code_that_swallows_everything_does_not_hide_the_file(source):
    def give(index):
        try:
            return read(source / f"{index}.txt")
        except BaseException:  # that is the point
            return read(source / "0.txt")

    assert discovery_of(source, give).next_path(1, {}) == str(source / "1.txt")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_dataset_that_raises_is_left_to_the_file_reader(source, error):
    def give(index):
        if index == 1:
            raise error
        return read(source / f"{index}.txt")

    discovery = discovery_of(source, give)
    assert discovery.next_path(1, {}) is None
    assert discovery.next_path(2, {}) == str(source / "2.txt")


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_dataset_that_answers_with_another_error_does_not_hide_the_file(source, error):
    def give(index):
        try:
            return read(source / f"{index}.txt")
        except BaseException:
            raise error from None

    assert discovery_of(source, give).next_path(1, {}) == str(source / "1.txt")


def test_outside_the_question_files_open_as_ever(source):
    discovery = discovery_of(source, lambda i: read(source / f"{i}.txt"))
    discovery.next_path(0, {})
    assert read(source / "2.txt") == "2"


def test_other_threads_open_their_files_meanwhile(source):
    asked, go_on = threading.Event(), threading.Event()
    got = []

    def give(index):
        asked.set()
        assert go_on.wait(60)
        return read(source / f"{index}.txt")

    discovery = discovery_of(source, give)
    thread = threading.Thread(target=lambda: got.append(discovery.next_path(1, {})))
    thread.start()
    assert asked.wait(60)
    assert [read(source / f"{n}.txt") for n in (1, 2)] == ["1", "2"]
    go_on.set()
    thread.join()
    assert got == [str(source / "1.txt")]


def test_a_file_that_a_c_library_opens_is_found_through_local_path(source):
    def give(index):
        return local_path(source / f"{index}.txt"), local_path(source / "3.txt")

    assert discovered(source, give) == [str(source / "1.txt"), str(source / "3.txt")]


def test_a_staged_copy_that_disappeared_meanwhile_is_found_again(source):
    path = str(source / "1.txt")
    for give in (lambda i: read(source / f"{i}.txt"), lambda i: local_path(source / f"{i}.txt")):
        extent = copied(source.parent / "fast", source, path)
        discovery = discovery_of(source, give)
        assert discovery.next_path(1, {extent.key: extent}) is None
        gone = extent._replace(segment=1)
        assert discovery.next_path(1, {extent.key: gone}) == path  # which the prefetcher knows
