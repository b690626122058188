"""Where an open goes in a worker: to the handler if the file lies below the source."""

from __future__ import annotations

import builtins
import bz2
import io
import os
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pytest

from overlapiter.errors import OptionError
from overlapiter.openhook import OpenHook, local_path
from overlapiter.stagedfile import open_bytes, open_instead
from tests.support.hooks import uninstall


@pytest.fixture(autouse=True)
def plain_open():
    """Give every test the real open, and put it back whatever the test did."""
    real = builtins.open
    yield real
    builtins.open = io.open = real


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of files that say where they come from."""
    (tmp_path / "source").mkdir()
    for letter in "abc":
        (tmp_path / "source" / f"{letter}.txt").write_text(f"source {letter}")
    return tmp_path / "source"


class Handler:
    """Has some files in memory; a path that it gives is their name within a folder.

    Attributes:
        asked: The paths that it was called with.
    """

    def __init__(self, contents: dict[str, bytes], folder: str = "/copies") -> None:
        self._contents = contents
        self._folder = folder
        self.asked: list[str] = []

    def open(self, path, mode, args, kwargs):
        self.asked.append(path)
        data = self._contents.get(os.path.abspath(path))
        return None if data is None else open_bytes(data, path, mode, *args, **kwargs)

    def local_path(self, path):
        self.asked.append(path)
        is_staged = os.path.abspath(path) in self._contents
        return f"{self._folder}/{os.path.basename(path)}" if is_staged else None


class Elsewhere(Handler):
    """Opens every file at another place."""

    def open(self, path, mode, args, kwargs):
        return open_instead(self.local_path(path), path, mode, *args, **kwargs)


def real_text(path: Path) -> str:
    """Read a file past any hook."""
    with open(os.open(path, os.O_RDONLY)) as file:
        return file.read()


def staged(source: Path, letters: str) -> dict[str, bytes]:
    return {str(source / f"{letter}.txt"): f"staged {letter}".encode() for letter in letters}


@pytest.fixture
def handler(source):
    """The handler of an installed hook, with a.txt and b.txt staged, but not c.txt."""
    handler = Handler(staged(source, "ab"))
    hook = OpenHook(str(source), handler)
    hook.install()
    yield handler
    uninstall()


# --- the hook ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "rb", "br", "rt", "tr"])
@pytest.mark.usefixtures("handler")
def test_a_reading_open_gives_what_the_handler_gives(source, mode):
    with open(source / "a.txt", mode) as file:
        assert file.read() in ("staged a", b"staged a")


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_every_kind_of_path_is_redirected(source, handler, kind):
    with open(kind(str(source / "a.txt"))) as file:
        assert (file.read(), file.name) == ("staged a", str(source / "a.txt"))
    assert handler.asked == [str(source / "a.txt")]


@pytest.mark.parametrize("spelling", ["source/a.txt", "./source/a.txt", "source/../source/a.txt"])
def test_relative_and_roundabout_paths_are_redirected_as_they_are_written(
    source, handler, monkeypatch, spelling
):
    monkeypatch.chdir(source.parent)
    with open(spelling) as file:
        assert file.read() == "staged a"
    assert handler.asked == [spelling]


@pytest.mark.usefixtures("handler")
def test_the_arguments_reach_the_handler(source):
    arguments = ("r", -1, "latin-1")
    with open(source / "a.txt", *arguments, newline="\n") as file:
        assert (file.encoding, file.read()) == ("latin-1", "staged a")
    with open(file=source / "a.txt", mode="rb", buffering=0) as file:
        assert file.readall() == b"staged a"
    with pytest.raises(ValueError, match="binary mode doesn't take an encoding"):
        open(source / "a.txt", "rb", encoding="ascii")  # noqa: SIM115  # it does not open


@pytest.mark.parametrize("mode", ["r+", "rb+", "r+b", "a", "ab", "w", "wb", "a+"])
def test_writing_is_never_redirected(source, handler, mode):
    with open(source / "a.txt", mode) as file:
        file.write(b"new" if "b" in mode else "new")
    assert handler.asked == []
    assert "new" in real_text(source / "a.txt")


@pytest.mark.usefixtures("handler")
def test_a_new_file_is_made_in_the_source(source):
    (source / "a.txt").unlink()
    with open(source / "a.txt", "x") as file:
        file.write("new")
    assert real_text(source / "a.txt") == "new"


def test_a_descriptor_is_not_redirected(source, handler):
    for number in (int, np.int64):
        with open(number(os.open(source / "a.txt", os.O_RDONLY))) as file:
            assert file.read() == "source a"
    assert handler.asked == []


def test_an_open_with_an_opener_is_not_redirected(source, handler):
    """The path may lie in another directory, as with the opener of the Python manual."""
    folder = os.open(source, os.O_RDONLY)

    def opener(path, flags):
        return os.open(os.path.basename(path), flags, dir_fd=folder)

    positional = ("r", -1, None, None, None, True, opener)
    with open(source / "a.txt", *positional) as one, open(source / "a.txt", opener=opener) as two:
        assert one.read() == two.read() == "source a"
    os.close(folder)
    assert handler.asked == []
    with open(source / "a.txt", opener=None) as file:
        assert file.read() == "staged a"


def test_what_the_handler_leaves_alone_is_read_from_the_source(source, handler):
    assert (source / "c.txt").read_text() == "source c"
    assert handler.asked == [str(source / "c.txt")]


def test_other_files_are_left_alone_and_reported(source):
    other = source.parent / "source-of-another"
    other.write_text("other")
    handler, others = Handler({}), []
    hook = OpenHook(str(source), handler, elsewhere=others.append)
    hook.install()
    assert other.read_text() == "other"
    with open(os.fsencode(other)) as file:
        assert file.read() == "other"
    assert (source / "c.txt").read_text() == "source c"
    with open(source.parent / "new", "w"):
        pass
    uninstall()
    assert (handler.asked, others) == ([str(source / "c.txt")], [str(other)] * 2)


@pytest.mark.parametrize("wrong", [None, 3.5, object(), ["a"]])
@pytest.mark.usefixtures("handler")
def test_nonsense_raises_what_open_raises(plain_open, wrong):
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever it is
        plain_open(wrong)
    with pytest.raises(type(expected.value)) as caught:
        open(wrong)  # noqa: SIM115  # it does not open
    assert str(caught.value) == str(expected.value)


@pytest.mark.usefixtures("handler")
def test_a_missing_source_file_raises_with_its_own_name(source):
    with pytest.raises(FileNotFoundError) as caught:
        (source / "none.txt").read_text()
    assert caught.value.filename == str(source / "none.txt")


def test_what_the_handler_raises_reaches_the_caller(source):
    class StopHere(BaseException):
        pass

    class Raising(Handler):
        def open(self, path, *_):
            raise StopHere(path)

    hook = OpenHook(str(source), Raising({}))
    hook.install()
    try:
        with pytest.raises(StopHere):
            (source / "a.txt").read_text()
    finally:
        uninstall()


# --- who imported open ------------------------------------------------------------------------


@pytest.mark.usefixtures("handler")
def test_whatever_opens_through_python_is_redirected(source):
    with io.open(source / "a.txt") as file:  # noqa: UP020  # another name for the same
        assert file.read() == "staged a"
    assert (source / "a.txt").read_text() == "staged a"
    with (source / "a.txt").open("rb") as file:
        assert file.read() == b"staged a"


def test_a_module_that_imported_open_earlier_is_redirected_while_the_hook_is_there(
    source, monkeypatch
):
    module = types.ModuleType("imported_open_earlier")
    exec("from io import open\ndef read(path):\n    return open(path).read()", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "no_module", None)
    keepers = [(module, "open"), (tarfile, "bltn_open"), (bz2, "_builtin_open")]
    for keeper in keepers:  # whatever an earlier test has left there
        monkeypatch.setattr(*keeper, builtins.open)
    before = [getattr(*keeper) for keeper in keepers]
    hook = OpenHook(str(source), Handler(staged(source, "a")))
    hook.install()
    assert module.read(source / "a.txt") == "staged a"
    assert {getattr(*keeper) for keeper in keepers} == {builtins.open}
    uninstall()
    assert [getattr(*keeper) for keeper in keepers] == before


def test_a_module_with_an_open_of_its_own_keeps_it(source, monkeypatch):
    module = types.ModuleType("has_its_own_open")
    own = module.open = lambda path: path
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hook = OpenHook(str(source), Handler({}))
    hook.install()
    assert module.open is own
    uninstall()
    assert module.open is own


def test_hooks_stack_on_what_replaced_open_before(source, plain_open):
    seen = []

    def noisy_open(file, *args, **kwargs):
        seen.append(str(file))
        return plain_open(file, *args, **kwargs)

    other = source.parent / "other"
    builtins.open = noisy_open
    lower = OpenHook(str(source), Handler(staged(source, "a")))
    upper = OpenHook(str(other), Handler({str(other / "a.txt"): b"upper"}))
    for hook in (lower, upper):
        hook.install()
    for path, text in ((other / "a.txt", "upper"), (source / "a.txt", "staged a")):
        with open(path) as file:
            assert file.read() == text
    assert seen == []
    assert (source / "c.txt").read_text() == "source c"
    assert seen == [str(source / "c.txt")]
    for _ in (upper, lower):
        uninstall()
    assert builtins.open is noisy_open


def test_a_file_at_another_place_is_opened_under_the_name_of_the_source_unseen_by_hooks(source):
    others = []
    copies = source.parent / "copies"
    copies.mkdir()
    (copies / "a.txt").write_text("copy")
    handler = Elsewhere(staged(source, "a"), str(copies))
    hook = OpenHook(str(source), handler, elsewhere=others.append)
    hook.install()
    with open(source / "a.txt") as text, open(source / "a.txt", "rb", 0) as raw:
        assert (text.read(), raw.readall()) == ("copy", b"copy")
        assert text.name == raw.name == str(source / "a.txt")
    uninstall()
    assert others == []


# --- local_path -------------------------------------------------------------------------------


def test_outside_a_worker_local_path_is_the_path_itself(source):
    assert local_path(source / "a.txt") == str(source / "a.txt")
    assert local_path("any/thing") == "any/thing"


def test_in_a_file_reader_local_path_is_what_the_handler_says(source, handler):
    assert local_path(source / "a.txt") == "/copies/a.txt"
    assert local_path(str(source / "c.txt")) == str(source / "c.txt")
    assert local_path("/etc/hosts") == "/etc/hosts"
    assert handler.asked == [str(source / "a.txt"), str(source / "c.txt")]


def test_after_the_hook_is_gone_local_path_is_the_path_itself(source):
    hook = OpenHook(str(source), Handler(staged(source, "a")))
    hook.install()
    uninstall()
    assert local_path(source / "a.txt") == str(source / "a.txt")


# --- a source that is a URL -------------------------------------------------------------------


class Direct:
    """Gives the files of a remote source."""

    def open(self, url, mode="r", *args, **kwargs):
        return open_bytes(f"direct {url}".encode(), url, mode, *args, **kwargs)

    def download(self, url):
        return f"/private/{os.path.basename(url)}"


@pytest.fixture
def remote():
    handler = Handler({})
    handler.others = []
    url = "s3://bucket/train/a.txt"
    handler._contents[os.path.abspath(url)] = b"staged"
    hook = OpenHook("s3://bucket/train", handler, Direct(), handler.others.append)
    hook.install()
    yield handler
    uninstall()


@pytest.mark.parametrize("spelling", ["s3://bucket/train/a.txt", "s3:/bucket/train/a.txt"])
def test_a_staged_url_is_opened_by_the_handler(remote, spelling):
    with open(spelling, "rb") as first, Path(spelling).open("rb") as second:
        assert first.read() == second.read() == b"staged"
    assert remote.asked == ["s3://bucket/train/a.txt"] * 2
    assert local_path(spelling) == "/copies/a.txt"
    assert remote.others == []


@pytest.mark.usefixtures("remote")
def test_a_url_that_is_not_staged_is_opened_directly():
    with open("s3://bucket/train/b.txt", encoding="ascii") as file:
        assert (file.read(), file.encoding) == ("direct s3://bucket/train/b.txt", "ascii")
    assert local_path("s3://bucket/train/b.txt") == "/private/b.txt"


@pytest.mark.usefixtures("remote")
def test_a_url_of_no_source_has_no_local_path():
    with pytest.raises(OptionError, match="no local copy here"):
        local_path("s3://other/b.txt")
