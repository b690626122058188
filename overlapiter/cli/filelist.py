"""Lists of files, as a user gives them: one path a line, or Chainer's ``path label`` pairs."""

from __future__ import annotations

import argparse
import codecs
import os
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from overlapiter.sources import paths_below
from overlapiter.urls import is_url

from .console import UsageError
from .crew import answered
from .origins import TIMEOUT_SECONDS

#: Of so many lines in a row it is looked up whether a name ends in a number, or a label follows it.
_LOOKS = 64


class FileList(NamedTuple):
    """What a list names: files below the source, absolute and each once; others as written."""

    paths: list[str]
    outside: list[str]


def add_list(parser: argparse.ArgumentParser, text: str, nargs: str | None = None) -> None:
    """Declare a list of files, as ``text`` describes it."""
    parser.add_argument("list", metavar="LIST", nargs=nargs, help=text)
    null = "each entry of LIST ends in a null byte, as `find -print0` writes it, and has no label"
    parser.add_argument("-0", "--null", action="store_true", help=null)


def read_list(
    name: str,
    source: str,
    labels: str = "auto",
    *,
    is_null: bool = False,
    timeout_seconds: float = TIMEOUT_SECONDS,
    is_file: Callable[[str], bool] | None = None,
) -> FileList:
    """Read a list.

    Args:
        name: The file; ``-`` for standard input.
        source: Relative entries are relative to this.
        labels: ``"yes"`` if each line is ``path label``, ``"no"`` if it is a path, ``"auto"`` to
            tell line by line: a number at the end is a label, unless the line is the name of a
            file. Some lines are looked up at the source for this, not all.
        is_null: Whether a null byte ends an entry, and has no label.
        timeout_seconds: How long the source may take to answer.
        is_file: Asked in place of the source, for all lines, with absolute paths.

    Raises:
        CommandError: It cannot be read, is no text, names nothing, a line has no label though each
            is to have one, or the source does not answer.
    """
    text = _read(name).removeprefix(codecs.BOM_UTF8)
    called = "standard input" if name == "-" else name
    lines = text.split(b"\0") if is_null else [*map(bytes.strip, text.split(b"\n"))]
    n_lines = len(lines) - lines.count(b"")
    if not is_null and _is_binary(text, n_lines):
        raise UsageError(f"{called} is no list of text; give one path a line")
    if not n_lines:
        raise UsageError(f"{called} is empty; give one path a line")
    n_looks = n_lines if is_file else 0 if is_url(source) else _LOOKS

    def is_name(line: bytes) -> bool:
        path = os.path.join(source, os.fsdecode(line))
        if is_file is not None:
            return is_file(path)
        return answered(path, lambda: os.path.lexists(path), timeout_seconds)

    if is_null and labels == "auto":
        labels = "no"
    names = _names(lines, labels, called, is_name, n_looks)
    paths: dict[str, None] = {}
    outside = []
    for entry in dict.fromkeys(map(os.fsdecode, names)):
        whole = entry if is_url(entry) else os.path.join(source, entry)
        below = [] if "\0" in entry else list(paths_below(source, [whole]))
        if below:
            paths[below[0][1]] = None
        else:
            outside.append(entry)
    return FileList(list(paths), outside)


def _is_binary(text: bytes, n_lines: int) -> bool:
    """Return whether it is something else, a photograph for example; a bad line is none."""
    n_zeros = text.count(b"\0")
    try:
        text.decode()
    except UnicodeDecodeError:
        return n_zeros > 0  # names may be of any bytes but these
    return n_zeros > n_lines


def _names(
    lines: list[bytes], labels: str, called: str, is_name: Callable[[bytes], bool], n_looks: int
) -> Iterator[bytes]:
    """Give what lines name, without the labels that some have.

    To look up each one at the source would take as long as staging. So the first ones are, and all
    others only if there was a file among these whose name ends in a number.
    """
    n_left = n_looks
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        name, *label = (line,) if labels == "no" else line.rsplit(None, 1)
        is_labelled = labels == "yes"
        if is_labelled and not label:
            message = f"{called}, line {number}: {os.fsdecode(line)!r} is no `path label`"
            raise UsageError(f"{message}; mend it, or leave out --labels yes")
        if labels == "auto" and label and label[0].lstrip(b"+-").isdigit():
            is_labelled = not (n_left and is_name(line))
            n_left = max(0, n_left - 1) if is_labelled else n_looks
        yield name if is_labelled else line


def _read(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            f"the list {name} cannot be read ({error.strerror}); name a file with one path a line, "
            f"or - for standard input"
        ) from error
