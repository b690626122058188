"""A staged file in memory behaves as the file that ``open`` gives."""

from __future__ import annotations

import copy
import fcntl
import gc
import io
import mmap
import os
import pickle
import resource
import subprocess
import weakref
from pathlib import Path

import numpy as np
import pytest

from overlapiter.stagedfile import open_bytes, open_instead

TEXT = "first\r\nsecond: naïve\nthird\rlast".encode()
LONG = bytes(range(256)) * 200


def outcome(use, *args):
    """Return what a call gives, or the type and the text of what it raises."""
    try:
        return use(*args)
    except Exception as error:
        return type(error), str(error)


def made(data: bytes, folder: Path) -> Path:
    path = folder / "real.bin"
    path.write_bytes(data)
    return path


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- as the file of open(name, "rb") ------------------------------------------------------------


def put(f, size):
    """Read into a buffer of this size; return how much that was, and the buffer."""
    buffer = bytearray(size)
    return f.readinto(buffer), bytes(buffer), f.tell()


CALLS = {
    "read": lambda f: (f.read(), f.read(), f.tell()),
    "read some": lambda f: (f.read(3), f.read(0), f.tell(), f.read(None)),
    "read1": lambda f: (f.read1(7), f.tell()),
    "readinto": lambda f: put(f, 9),
    "readinto more than there is": lambda f: put(f, len(LONG) + 5),
    "readinto1": lambda f: (f.readinto1(bytearray(4)), f.tell()),
    "readline": lambda f: (f.readline(), f.readline(3), f.tell()),
    "readlines": lambda f: (f.readlines(5), f.readlines()),
    "iterate": lambda f: [*f],
    "next": lambda f: (next(f), f.tell()),
    "seek from the start": lambda f: (f.seek(5), f.read(2), f.seek(np.int64(3)), f.read(1)),
    "seek from here": lambda f: (f.read(4), f.seek(-2, 1), f.seek(1, os.SEEK_CUR), f.read(2)),
    "seek from the end": lambda f: (f.seek(-4, 2), f.read()),
    "seek beyond the end": lambda f: (f.seek(10**6), f.tell(), f.read(), f.peek(), f.read(1)),
    "seek before the start": lambda f: (f.read(3), outcome(f.seek, -1), f.tell()),
    "seek from here before the start": lambda f: (f.read(3), outcome(f.seek, -4, 1), f.tell()),
    "seek from the end before the start": lambda f: (
        f.read(3),
        outcome(f.seek, -(10**6), 2),
        f.tell(),
    ),
    "peek": lambda f: (f.peek()[:9], f.peek(3)[:3], f.tell(), f.read(4), f.peek(1)[:1]),
    "peek at the end": lambda f: (f.read(), f.peek(4)),
    "write": lambda f: f.write(b"x"),
    "write nothing": lambda f: f.write(b""),
    "writelines": lambda f: f.writelines([b"x"]),
    "truncate": lambda f: (outcome(f.truncate)[0], outcome(f.truncate, 0)[0], f.read()),
    "flush": lambda f: f.flush(),
    "facts": lambda f: (f.readable(), f.writable(), f.seekable(), f.isatty(), f.closed),
    "mode": lambda f: f.mode,
    "with": lambda f: (f.__enter__() is f, f.__exit__(None, None, None), f.closed),
    "close twice": lambda f: (f.close(), f.close(), f.closed),
    "size by descriptor": lambda f: os.fstat(f.fileno()).st_size,
    "descriptor": lambda f: (f.fileno() == f.fileno(), os.isatty(f.fileno())),
    "descriptor for reading": lambda f: fcntl.fcntl(f.fileno(), fcntl.F_GETFL) & os.O_ACCMODE,
    "descriptor not inherited": lambda f: os.get_inheritable(f.fileno()),
    "write to the descriptor": lambda f: os.write(f.fileno(), b"x"),
    "cut the descriptor": lambda f: os.ftruncate(f.fileno(), 1),
    "descriptor after seek": lambda f: (f.seek(7), os.pread(f.fileno(), 3, 0), f.read(2)),
    "position of the descriptor": lambda f: (f.seek(20), os.read(f.fileno(), 3)),
    "map": lambda f: bytes(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)),
    "map with a private copy": lambda f: mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)[:4],
    "map for writing": lambda f: mmap.mmap(f.fileno(), 0),
    "abstract classes": lambda f: (
        isinstance(f, io.IOBase),
        isinstance(f, io.BufferedIOBase),
        isinstance(f, io.RawIOBase),
        isinstance(f, io.TextIOBase),
    ),
    "attributes": lambda f: (outcome(setattr, f, "own", 1), f.own, weakref.ref(f)() is f),
}


@pytest.mark.parametrize("data", [b"", b"x", TEXT, LONG], ids=["empty", "byte", "text", "long"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_call_gives_what_a_file_gives(tmp_path, data, call):
    with open(made(data, tmp_path), "rb") as real, open_bytes(data, "n") as staged:
        assert outcome(call, staged) == outcome(call, real)


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f.read(),
        lambda f: f.read1(),
        lambda f: f.readinto(bytearray(1)),
        lambda f: f.readline(),
        lambda f: f.readlines(),
        lambda f: next(f),
        lambda f: f.peek(),
        lambda f: f.tell(),
        lambda f: f.seek(0),
        lambda f: f.seek(-1, 2),
        lambda f: f.fileno(),
        lambda f: f.flush(),
        lambda f: f.isatty(),
        lambda f: f.seekable(),
        lambda f: f.readable(),
        lambda f: f.__enter__(),
        lambda f: f.mode,
    ],
)
def test_a_closed_file_refuses_what_a_closed_file_refuses(tmp_path, call):
    with open(made(TEXT, tmp_path), "rb") as real, open_bytes(TEXT, "n") as staged:
        pass
    found, expected = outcome(call, staged), outcome(call, real)
    assert found == expected or (found[0] is ValueError and expected[0] is ValueError)


@pytest.mark.parametrize("name", ["a/b.jpg", b"a/b.jpg", Path("a/b.jpg"), "ä.jpg"])
@pytest.mark.parametrize("mode", ["rb", "r"])
def test_the_name_is_what_the_caller_wrote(tmp_path, monkeypatch, name, mode):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    made(b"", tmp_path).rename(name if isinstance(name, Path) else os.fsdecode(name))
    with open(name, mode) as real, open_bytes(b"", name, mode) as staged:
        assert (staged.name, staged.mode) == (real.name, real.mode)
        assert repr(real.name) in repr(staged)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_is_refused(protocol):
    with open_bytes(TEXT, "n") as staged, pytest.raises(TypeError, match=r"cannot pickle 'Stag"):
        pickle.dumps(staged, protocol)


@pytest.mark.parametrize("mode", ["rb", "r"])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copying_is_refused(mode, duplicate):
    with open_bytes(TEXT, "n", mode) as staged, pytest.raises(TypeError, match="cannot pickle"):
        duplicate(staged)


def test_the_bytes_are_shared():
    with open_bytes(LONG, "n") as staged:
        assert staged.getvalue() is LONG
        assert staged.read() is LONG


# --- the descriptor -----------------------------------------------------------------------------


def test_no_descriptor_is_made_unless_it_is_asked_for():
    before = open_descriptors()
    with open_bytes(TEXT, "n") as staged, open_bytes(TEXT, "n", "r") as text:
        assert (staged.read(), text.read()[:5]) == (TEXT, "first")
        assert open_descriptors() == before


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_the_descriptor_ends_with_the_file(mode):
    before = open_descriptors()
    staged = open_bytes(TEXT, "n", mode)
    number = staged.fileno()
    assert (staged.fileno(), open_descriptors()) == (number, before + 1)
    staged.close()
    staged.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("mode", ["rb", "r"])
@pytest.mark.parametrize("is_in_cycle", [False, True])
def test_the_descriptor_ends_with_a_file_that_was_forgotten(mode, is_in_cycle):
    before = open_descriptors()
    staged = open_bytes(TEXT, "n", mode)
    staged.fileno()
    if is_in_cycle:
        staged.own = [staged]
        del staged
        gc.collect()
    else:
        del staged
    assert open_descriptors() == before


def test_where_no_descriptor_is_left_the_error_says_so_and_nothing_leaks():
    with open_bytes(TEXT, "n") as staged:
        before = open_descriptors()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        for n_left in (0, 1):  # it takes two while it is made
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + n_left, limits[1]))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    staged.fileno()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert open_descriptors() == before
        assert os.pread(staged.fileno(), 5, 0) == b"first"


def test_a_mapping_outlives_the_file():
    with open_bytes(LONG, "n") as staged:
        mapping = mmap.mmap(staged.fileno(), 0, access=mmap.ACCESS_READ)
    with mapping:
        assert mapping[:] == LONG


def test_another_process_reads_on_from_where_the_file_stands():
    with open_bytes(TEXT, "n") as staged:
        staged.readline()
        done = subprocess.run(["cat"], stdin=staged, capture_output=True, check=True)
    assert done.stdout == TEXT[7:]


# --- the arguments of open ----------------------------------------------------------------------

ARGUMENTS = [
    ("rb",),
    ("br",),
    ("rb", -1, None, None, None),
    ("rb", 4096),
    ("rb", 0),
    ("rb", -5),
    ("rb", -1, "utf-8"),
    ("rb", -1, None, "strict"),
    ("rb", -1, None, None, ""),
    ("rb", 0, "utf-8"),
    ("r",),
    ("rt", 1),
    ("tr", 4096, "utf-8"),
    ("r", -1, "latin-1"),
    ("r", -1, "ascii", "replace"),
    ("r", -1, "ascii", "strict"),
    ("r", -1, None, "no such thing"),
    ("r", -1, "no such thing"),
    ("r", -1, None, None, ""),
    ("r", -1, None, None, "\n"),
    ("r", -1, None, None, "\r\n"),
    ("r", -1, None, None, "x"),
    ("r", 0),
    ("rb", -1, None, None, None, False),
    ("r", -1, None, None, None, False),
    ("rb", -1, None, None, None, True, None),
]


def content(opened):
    """Read a file in several ways."""
    with opened as file:
        lines = [file.readline(), file.read(3)]
        at = file.tell()
        file.seek(0)
        facts = (file.mode, getattr(file, "encoding", 0), getattr(file, "errors", 0))
        return lines, at, file.read(), getattr(file, "newlines", 0), facts


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=repr)
def test_the_arguments_mean_what_they_mean_to_open(tmp_path, arguments):
    path = made(TEXT, tmp_path)
    expected = outcome(lambda: content(open(path, *arguments)))  # noqa: SIM115  # content closes it
    assert outcome(lambda: content(open_bytes(TEXT, "n", *arguments))) == expected
    assert outcome(lambda: content(open_instead(str(path), "n", *arguments))) == expected


def test_line_buffering_in_binary_mode_is_warned_of_as_by_open():
    with pytest.warns(RuntimeWarning, match="line buffering"):
        open_bytes(TEXT, "n", "rb", 1).close()


@pytest.mark.parametrize("mode", ["w", "r+b", "a", "x", "nonsense"])
def test_a_mode_that_does_not_only_read_is_refused(mode):
    with pytest.raises(ValueError, match="opened for reading"):
        open_bytes(TEXT, "n", mode)


def test_without_a_buffer_it_is_as_a_raw_file(tmp_path):
    uses = [lambda f: (f.read(2), f.readall(), f.readall()), lambda f: put(f, 9), lambda f: [*f]]
    for use in uses:
        with open(made(TEXT, tmp_path), "rb", 0) as real, open_bytes(TEXT, "n", "rb", 0) as staged:
            assert use(staged) == use(real)
            assert (staged.mode, staged.closefd) == (real.mode, real.closefd)


def test_text_refuses_to_be_written():
    with open_bytes(TEXT, "n", "r") as staged:
        assert not staged.writable()
        for write in (staged.write, staged.truncate):
            with pytest.raises(io.UnsupportedOperation):
                write("")


@pytest.mark.parametrize("name", ["a/b.jpg", b"a/b.jpg", Path("a/b.jpg")])
def test_a_file_with_another_name_says_the_name_that_it_was_given(tmp_path, name):
    with open_instead(str(made(TEXT, tmp_path)), name, "r", encoding="utf-8") as file:
        assert (file.name, file.read()[:5]) == (os.fspath(name), "first")
    with pytest.raises(FileNotFoundError) as caught:
        open_instead("/nowhere/at/all", name)
    assert caught.value.filename == "/nowhere/at/all"
