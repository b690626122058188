"""Which functions and classes of which modules open copies instead of source files, and how."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import pytest

from overlapiter import importhook, redirect, redirection
from overlapiter.errors import OptionError
from overlapiter.openhook import OpenHook, replace_imported
from overlapiter.redirection import Reader, install
from overlapiter.stagedfile import open_bytes
from tests.support.hooks import uninstall

LIBRARY = """
import _io
from builtins import slice as Window
from sqlite3 import Connection

def read(path, mode="r"):
    with _io.open(path) as file:
        return file.read()

def written(path, kind="r", mode="r"):
    return path

class Volume:
    def __init__(self, path):
        self.path = path

    def open(self, path):
        return path

class Mapped(str):
    def __new__(cls, path):
        return str.__new__(cls, path)
"""
NAMES = ("read", "written", "Volume", "Volume.open", "Mapped")


class Copies:
    """Has copies of some files, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def open(self, path, mode, args, kwargs):
        copy = self.local_path(path)
        return copy and open_bytes(Path(copy).read_bytes(), path, mode, *args, **kwargs)

    def local_path(self, path):
        self.asked.append(path)
        copy = self.folder / os.path.basename(path)
        return str(copy) if copy.exists() else None


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "copies").mkdir()
    for name in "ab":
        (tmp_path / "source" / name).write_text(f"source {name}")
    (tmp_path / "copies" / "a").write_text("copy a")
    return tmp_path / "source"


@pytest.fixture
def copies(source: Path):
    """The handler of a hook that has a copy of the file a, but not of b."""
    handler = Copies(source.parent / "copies")
    hook = OpenHook(str(source), handler)
    hook.install()
    yield handler
    uninstall()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A folder of modules; what is redirected is as before after the test."""
    monkeypatch.setattr(redirection, "_table", dict(redirection._table))
    monkeypatch.setattr(redirection, "_is_installed", False)
    monkeypatch.setattr(importhook, "_acts", {})
    real = {"open": os.open, "Connection": sqlite3.Connection}
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "library_in_c.py").write_text(LIBRARY)
    (folder / "user_of_it.py").write_text("from library_in_c import read\n")
    (folder / "late_names.py").write_text("def __getattr__(name):\n    return max\n")
    monkeypatch.syspath_prepend(folder)
    yield folder
    os.supports_dir_fd.discard(os.open)
    replace_imported(["open"], os.open, real["open"])
    replace_imported(["Connection"], sqlite3.Connection, real["Connection"])
    os.supports_dir_fd.add(os.open)
    for name in ("library_in_c", "user_of_it", "late_names"):
        sys.modules.pop(name, None)


@pytest.fixture
def library(folder: Path) -> ModuleType:
    """A module whose readers are redirected."""
    assert (folder / "library_in_c.py").exists()
    install(Reader("library_in_c", name) for name in NAMES)
    return importlib.import_module("library_in_c")


# --- functions ------------------------------------------------------------------------------------


def test_a_function_opens_the_copy_where_there_is_one(library, source, copies):
    assert [library.read(str(source / name)) for name in "ab"] == ["copy a", "source b"]
    assert library.read(path=str(source / "a")) == "copy a"
    assert library.read(str(source.parent / "copies" / "a")) == "copy a"
    assert copies.asked == [str(source / name) for name in "aba"]


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
@pytest.mark.usefixtures("copies")
def test_a_path_keeps_its_type(library, source, kind):
    for name, expected in (("a", source.parent / "copies" / "a"), ("b", source / "b")):
        path = kind(str(source / name))
        found = library.written(path)
        assert type(found) is type(path)
        assert found == kind(str(expected))


@pytest.mark.parametrize("thing", [3, None, b"", "", object()])
@pytest.mark.usefixtures("copies")
def test_what_is_no_path_of_the_source_is_given_on(library, thing):
    assert library.written(thing) is thing


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+", "w-", "rb+", "wb", "ws", "r+b"])
def test_what_may_write_is_left_alone(library, source, copies, mode):
    path = str(source / "a")
    assert library.written(path, mode) == library.written(path, mode=mode) == path
    assert copies.asked == []


@pytest.mark.parametrize("mode", ["r", "rb", "rs", "float32", "PNG", None, 1])
@pytest.mark.usefixtures("copies")
def test_other_second_arguments_are_no_modes(library, source, mode):
    assert library.written(str(source / "a"), mode) == str(source.parent / "copies" / "a")


def test_without_a_hook_nothing_changes(library, source):
    assert library.read(str(source / "a")) == "source a"
    assert library.read.__name__ == "read"
    assert pickle.loads(pickle.dumps(library.read)) is library.read


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_a_reader_that_looks_at_the_content_alone_gets_a_file_in_memory(
    library, source, copies, kind
):
    redirect("library_in_c", "read", by_content=True)
    redirect("library_in_c", "written", by_content=True)
    assert [library.read(kind(str(source / name))) for name in "ab"] == ["copy a", "source b"]
    assert library.written(path=str(source / "a")).startswith("/proc/self/fd/")
    assert library.written("elsewhere") == "elsewhere"
    assert library.written(3) == 3
    assert copies.asked == [str(source / name) for name in "aba"]


def test_a_reader_may_be_left_alone_at_any_time(library, source, copies):
    redirect("library_in_c", "read", is_on=False)
    assert library.read(str(source / "a")) == "source a"
    assert copies.asked == []
    redirect("library_in_c", "read")
    assert library.read(str(source / "a")) == "copy a"


@pytest.mark.usefixtures("copies", "folder")
def test_what_has_been_imported_before_is_redirected(source):
    user = importlib.import_module("user_of_it")
    install([Reader("library_in_c", "read")])
    assert user.read(str(source / "a")) == "copy a"
    assert user.read is sys.modules["library_in_c"].read


@pytest.mark.usefixtures("copies", "folder")
def test_what_is_named_after_the_start_is_redirected_too(source):
    install([])
    user = importlib.import_module("user_of_it")
    redirect("library_in_c", "read")
    assert user.read(str(source / "a")) == "copy a"


@pytest.mark.usefixtures("copies")
def test_a_module_that_is_loaded_again_is_redirected_once_more(library, source):
    importlib.reload(library)
    install([])
    assert library.read(str(source / "a")) == "copy a"
    assert not hasattr(library.read.__wrapped__, "__wrapped__")


@pytest.mark.usefixtures("copies")
def test_a_replacement_of_the_users_stays(library, source, monkeypatch):
    monkeypatch.setattr(library, "read", lambda path: f"mine of {path}")
    assert library.read(str(source / "a")) == f"mine of {source / 'a'}"


# --- classes --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("copies")
def test_a_class_stays_the_same_class(library, source):
    class Mine(library.Volume):
        def __init__(self, path):
            super().__init__(path)

    copy = str(source.parent / "copies" / "a")
    for kind in (library.Volume, Mine):
        volume = kind(str(source / "a"))
        assert volume.path == volume.open(str(source / "a")) == copy
        assert isinstance(volume, library.Volume)
    assert library.Mapped(str(source / "a")) == copy
    assert pickle.loads(pickle.dumps(library.Volume("x"))).path == "x"


@pytest.mark.usefixtures("copies", "folder")
def test_a_class_that_cannot_be_changed_is_replaced_by_one_that_checks_alike(source):
    plain, other = sqlite3.Connection, sqlite3.connect(":memory:")
    with contextlib.closing(plain(source.parent / "copies" / "a.db")) as database:
        database.execute("CREATE TABLE copy (value)")
    install([Reader("library_in_c", "Connection")])
    library = importlib.import_module("library_in_c")
    assert library.Connection is not plain
    with contextlib.closing(library.Connection(str(source / "a.db"))) as database:
        assert database.execute("SELECT COUNT(*) FROM copy").fetchall() == [(0,)]
        assert isinstance(database, plain)
    assert isinstance(other, library.Connection)
    assert issubclass(plain, library.Connection)
    assert not isinstance(source, library.Connection)
    other.close()


@pytest.mark.usefixtures("copies", "folder")
def test_a_class_that_can_have_no_subclass_either_is_replaced_by_a_function(source):
    install([Reader("library_in_c", "Window")])
    library = importlib.import_module("library_in_c")
    found = library.Window(str(source / "a"), 2)
    assert (found.start, found.stop) == (str(source.parent / "copies" / "a"), 2)
    assert isinstance(found, slice)


# --- modules --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_nothing_is_imported_for_the_table_and_loaders_stay_as_they_are():
    before = set(sys.modules)
    install([Reader("library_in_c", "read")])
    assert set(sys.modules) == before
    found = importlib.import_module("library_in_c")
    assert vars(found.__loader__).keys() == vars(found.__spec__.loader).keys() == {"name", "path"}
    assert importlib.import_module("user_of_it").read is found.read
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")


@pytest.mark.usefixtures("folder")
def test_a_name_that_a_module_does_not_have_is_an_error():
    install([Reader("library_in_c", "raed")])
    with pytest.raises(OptionError, match="library_in_c has no raed; correct"):
        importlib.import_module("library_in_c")


@pytest.mark.usefixtures("folder")
def test_a_name_that_an_imported_module_does_not_have_is_an_error_at_once():
    importlib.import_module("library_in_c")
    for name in ("raed", "Volume.opne", "Volum.open"):
        with pytest.raises(OptionError, match=f"library_in_c has no {name}; correct"):
            redirect("library_in_c", name)
    assert redirection.added_readers() == ()


@pytest.mark.usefixtures("folder")
def test_a_module_may_make_its_names_when_they_are_asked_for():
    install([Reader("late_names", "largest")])
    late = importlib.import_module("late_names")
    assert late.largest.__wrapped__ is max


@pytest.mark.parametrize("names", [("cv2", ""), ("", "imread"), ("cv2", "imread()"), (None, "a")])
def test_what_is_no_name_is_refused(names):
    with pytest.raises(OptionError, match="is no name"):
        redirect(*names)


# --- os.open --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
@pytest.mark.usefixtures("copies", "library")
def test_a_descriptor_is_one_of_the_copy(source, kind):
    for name, text in (("a", b"copy a"), ("b", b"source b")):
        fd = os.open(kind(str(source / name)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert os.fstat(fd).st_size == len(text)
            assert not os.get_inheritable(fd)
            assert (os.read(fd, 4), os.pread(fd, 99, 0)) == (text[:4], text)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
        finally:
            os.close(fd)


@pytest.mark.usefixtures("library")
def test_a_descriptor_for_anything_but_reading_is_of_the_source(source, copies):
    place = os.open(path=source, flags=os.O_RDONLY | os.O_DIRECTORY)
    for path, flags, options in (
        (source / "a", os.O_RDWR, {}),
        (source / "a", os.O_WRONLY | os.O_APPEND, {}),
        (source / "new", os.O_RDONLY | os.O_CREAT, {"mode": 0o600}),
        ("a", os.O_RDONLY, {"dir_fd": place}),
    ):
        fd = os.open(path, flags, **options)
        assert os.readlink(f"/proc/self/fd/{fd}") == str(source / path)
        os.close(fd)
    os.close(place)
    assert copies.asked == []
    assert os.open in os.supports_dir_fd
    with pytest.raises(FileNotFoundError):
        os.open(source / "none", os.O_RDONLY)
    with pytest.raises(TypeError):
        os.open(3.5, os.O_RDONLY)
