"""Lists of files, as a user gives them: one path a line, or Chainer's ``path label`` pairs."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from overlapiter.sources import paths_below
from overlapiter.urls import is_url

from .console import CommandError

#: Of so many lines in a row it is looked up whether a name ends in a number, or a label follows it.
_LOOKS = 64


class FileList(NamedTuple):
    """What a list names.

    Attributes:
        paths: The files below the source: absolute, normalised, each once, in its order.
        outside: The entries that lie elsewhere, as written.
    """

    paths: list[str]
    outside: list[str]


def read_list(name: str, source: str, labels: str = "auto") -> FileList:
    """Read a list.

    Args:
        name: The file; ``-`` for standard input.
        source: Relative entries are relative to this.
        labels: ``"yes"`` if each line is ``path label``, ``"no"`` if it is a path, ``"auto"`` to
            tell line by line: a number at the end is a label, unless the line is the name of a
            file. Some lines are looked up at the source for this, not all.

    Raises:
        CommandError: It cannot be read, is no text, or names nothing.
    """
    text = _read(name)
    called = "standard input" if name == "-" else name
    lines = [line for line in map(bytes.strip, text.split(b"\n")) if line]
    if _is_binary(text, len(lines)):
        raise CommandError(f"{called} is no list of text; give one path a line", is_usage=True)
    if not lines:
        raise CommandError(f"{called} is empty; give one path a line", is_usage=True)
    if labels == "yes":
        lines = [line.rsplit(None, 1)[0] for line in lines]
    elif labels == "auto":
        lines = _without_labels(lines, source)
    paths: dict[str, None] = {}
    outside = []
    for entry in dict.fromkeys(map(os.fsdecode, lines)):
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


def _without_labels(lines: list[bytes], source: str) -> list[bytes]:
    """Return the lines without the labels that some have.

    To look up each one would take as long as staging. So the first ones are, and all others only
    if there was a file among these whose name ends in a number.
    """
    names = []
    n_looks = 0 if is_url(source) else _LOOKS
    for line in lines:
        name, *label = line.rsplit(None, 1)
        is_labelled = bool(label) and label[0].lstrip(b"+-").isdigit()
        if is_labelled and n_looks:
            n_looks -= 1
            if _exists(os.path.join(os.fsencode(source), line)):
                n_looks, is_labelled = _LOOKS, False
        names.append(name if is_labelled else line)
    return names


def _exists(path: bytes) -> bool:
    return b"\0" not in path and os.path.lexists(path)


def _read(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise CommandError(
            f"the list {name} cannot be read ({error.strerror}); name a file with one path a line, "
            f"or - for standard input",
            is_usage=True,
        ) from error
