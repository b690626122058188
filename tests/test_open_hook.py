"""Where an open goes in a worker: to the staged copy, if there is one and it is whole."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path

import numpy as np
import pytest

from overlapiter.openhook import OpenHook, local_path
from overlapiter.sources import Copy, Redirect, stamp_of


@pytest.fixture(autouse=True)
def plain_open():
    """Give every test the real open, and put it back whatever the test did."""
    real = builtins.open
    yield real
    builtins.open = io.open = real


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A source and a staging folder whose files of one name differ in content."""
    for name in ("source", "staged"):
        (tmp_path / name).mkdir()
        for letter in "abc":
            (tmp_path / name / f"{letter}.txt").write_text(f"{name} {letter}")
    return tmp_path / "source", tmp_path / "staged"


def copy_at(path: Path) -> Copy:
    return Copy(str(path), stamp_of(path.lstat()))


@pytest.fixture
def hooked(folders):
    """A hook with a redirect whose table holds a.txt and b.txt, but not c.txt."""
    source, staged = folders
    redirect = Redirect()
    redirect.begin_part({str(source / f"{n}.txt"): copy_at(staged / f"{n}.txt") for n in "ab"})
    hook = OpenHook(str(source), redirect)
    hook.install()
    yield redirect
    hook.uninstall()


def opens(redirect: Redirect) -> tuple[int, int]:
    return redirect.opens_staged, redirect.opens_source


# --- the hook ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "rb", "br", "rt", "tr"])
def test_a_reading_open_goes_to_the_staged_copy(folders, hooked, mode):
    with open(folders[0] / "a.txt", mode) as file:
        assert file.read() in ("staged a", b"staged a")
    assert opens(hooked) == (1, 0)


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_every_kind_of_path_is_redirected(folders, hooked, kind):
    with open(kind(str(folders[0] / "a.txt"))) as file:
        assert file.read() == "staged a"
    assert hooked.opened == [str(folders[0] / "a.txt")]


@pytest.mark.parametrize("spelling", ["source/a.txt", "./source/a.txt", "source/../source/a.txt"])
@pytest.mark.usefixtures("hooked")
def test_relative_and_roundabout_paths_are_redirected(folders, monkeypatch, spelling):
    monkeypatch.chdir(folders[0].parent)
    with open(spelling) as file:
        assert file.read() == "staged a"


def test_whatever_opens_through_python_is_redirected(folders, hooked):
    np.save(folders[1] / "array.npy", np.arange(3))
    (folders[1] / "array.npy").rename(folders[1] / "b.txt")
    copies = {str(folders[0] / name): copy_at(folders[1] / name) for name in ("a.txt", "b.txt")}
    hooked.begin_part(copies)
    assert np.load(folders[0] / "b.txt").tolist() == [0, 1, 2]
    with io.open(folders[0] / "a.txt") as file:  # noqa: UP020  # another name for the same
        assert file.read() == "staged a"
    assert (folders[0] / "a.txt").read_text() == "staged a"
    with open(file=folders[0] / "a.txt", mode="rb", buffering=0) as file:
        assert file.read() == b"staged a"


@pytest.mark.parametrize("mode", ["r+", "rb+", "r+b", "a", "ab", "w", "wb", "a+"])
def test_writing_is_never_redirected(folders, hooked, mode):
    with open(folders[0] / "a.txt", mode) as file:
        file.write(b"new" if "b" in mode else "new")
    assert opens(hooked) == (0, 0)
    assert (folders[1] / "a.txt").read_text() == "staged a"
    hooked.begin_part({})
    assert "new" in (folders[0] / "a.txt").read_text()


def test_a_new_file_is_made_in_the_source(folders, hooked):
    hooked.begin_part({str(folders[0] / "new.txt"): Copy(str(folders[1] / "new.txt"), 1)})
    with open(folders[0] / "new.txt", "x") as file:
        file.write("new")
    assert not (folders[1] / "new.txt").exists()


def test_a_descriptor_is_not_redirected(folders, hooked):
    for number in (int, np.int64):
        with open(number(os.open(folders[0] / "a.txt", os.O_RDONLY))) as file:
            assert file.read() == "source a"
    assert opens(hooked) == (0, 0)


def test_a_file_that_is_not_staged_is_read_from_the_source_and_counted(folders, hooked):
    assert (folders[0] / "c.txt").read_text() == "source c"
    assert opens(hooked) == (0, 1)


def test_other_files_are_left_alone(folders, hooked):
    other = folders[0].parent / "source-of-another"
    other.write_text("other")
    assert other.read_text() == "other"
    assert (opens(hooked), hooked.opened) == ((0, 0), [])


@pytest.mark.parametrize("wrong", [None, 3.5, object(), ["a"]])
@pytest.mark.usefixtures("hooked")
def test_nonsense_raises_what_open_raises(plain_open, wrong):
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever it is
        plain_open(wrong)
    with pytest.raises(type(expected.value)) as caught:
        open(wrong)  # noqa: SIM115  # it does not open
    assert str(caught.value) == str(expected.value)


def test_a_missing_source_file_raises_with_its_own_name(folders, hooked):
    hooked.begin_part({})
    with pytest.raises(FileNotFoundError) as caught:
        (folders[0] / "none.txt").read_text()
    assert caught.value.filename == str(folders[0] / "none.txt")


def test_a_staged_copy_that_disappeared_is_replaced_by_the_source_and_counted(folders, hooked):
    (folders[1] / "a.txt").unlink()
    for n in (1, 2):
        assert (folders[0] / "a.txt").read_text() == "source a"
        assert opens(hooked) == (0, n)
        assert hooked.has_missed
    hooked.begin_part({})
    assert not hooked.has_missed


def keep_mtime(path: Path, data: str) -> None:
    before = path.stat()
    path.write_text(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


TOUCHES = {
    "cut short": lambda path: os.truncate(path, 3),
    "overwritten": lambda path: path.write_text("nonsense"),
    "overwritten, of the same size and mtime": lambda path: keep_mtime(path, "STAGED A"),
    "replaced": lambda path: (
        path.with_name("new").write_text("x"),
        path.with_name("new").rename(path),
    ),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a link": lambda path: (path.unlink(), path.symlink_to(path.with_name("b.txt"))),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_a_staged_copy_that_somebody_touched_is_not_read(folders, hooked, touch):
    touch(folders[1] / "a.txt")
    assert (folders[0] / "a.txt").read_text() == "source a"
    assert local_path(folders[0] / "a.txt") == str(folders[0] / "a.txt")
    assert (opens(hooked), hooked.has_missed) == ((0, 2), True)


def test_the_opened_files_are_those_of_the_current_example(folders, hooked):
    for letter in "ac":
        (folders[0] / f"{letter}.txt").read_text()
    assert hooked.opened == [str(folders[0] / f"{letter}.txt") for letter in "ac"]
    hooked.begin_example()
    assert hooked.opened == []


def test_hooks_stack_on_what_replaced_open_before(folders, plain_open):
    source, staged = folders
    seen = []

    def noisy_open(file, *args, **kwargs):
        seen.append(str(file))
        return plain_open(file, *args, **kwargs)

    builtins.open = noisy_open
    lower = OpenHook(str(source), {str(source / "a.txt"): str(source / "b.txt")}.get)
    lower.install()
    upper = OpenHook(str(staged), {str(staged / "a.txt"): str(source / "a.txt")}.get)
    upper.install()
    with open(staged / "a.txt") as file:  # upper, then lower, then the noisy one
        assert file.read() == "source b"
    assert seen == [str(source / "b.txt")]
    upper.uninstall()
    lower.uninstall()
    assert builtins.open is noisy_open


def test_a_hook_leaves_a_later_replacement_of_open_alone(folders, plain_open):
    hook = OpenHook(str(folders[0]), lambda _: None)
    hook.install()
    later = builtins.open = lambda *args, **kwargs: plain_open(*args, **kwargs)
    hook.uninstall()
    hook.uninstall()
    assert builtins.open is later


# --- local_path -------------------------------------------------------------------------------


def test_outside_a_worker_local_path_is_the_path_itself(folders):
    assert local_path(folders[0] / "a.txt") == str(folders[0] / "a.txt")
    assert local_path("any/thing") == "any/thing"


def test_in_a_file_reader_local_path_is_the_staged_copy_and_counts_as_an_open(folders, hooked):
    source, staged = folders
    assert local_path(source / "a.txt") == str(staged / "a.txt")
    assert opens(hooked) == (1, 0)
    assert local_path(str(source / "c.txt")) == str(source / "c.txt")
    assert opens(hooked) == (1, 1)
    assert local_path("/etc/hosts") == "/etc/hosts"
    assert opens(hooked) == (1, 1)
    assert hooked.opened == [str(source / "a.txt"), str(source / "c.txt")]


def test_local_path_never_names_a_copy_that_is_gone(folders, hooked):
    (folders[1] / "b.txt").unlink()
    assert local_path(folders[0] / "b.txt") == str(folders[0] / "b.txt")
    assert (opens(hooked), hooked.has_missed) == ((0, 1), True)


def test_after_the_hook_is_gone_local_path_is_the_path_itself(folders):
    hook = OpenHook(str(folders[0]), {str(folders[0] / "a.txt"): "/staged"}.get)
    hook.install()
    hook.uninstall()
    assert local_path(folders[0] / "a.txt") == str(folders[0] / "a.txt")
