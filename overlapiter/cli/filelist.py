"""Lists of files, as a user gives them: one path a line, or Chainer's ``path label`` pairs."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from overlapiter.sources import paths_below
from overlapiter.urls import is_url

from .console import CommandError


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
            go by whether every line has two words of which the second is a number.

    Raises:
        CommandError: It cannot be read, or names nothing.
    """
    lines = [line for line in map(bytes.strip, _read(name).split(b"\n")) if line]
    if not lines:
        raise CommandError(f"the list {_called(name)} is empty; give one path a line")
    if labels == "yes" or (labels == "auto" and all(map(_is_pair, lines))):
        lines = [line.rsplit(None, 1)[0] for line in lines]
    names = dict.fromkeys(map(os.fsdecode, lines))
    paths: dict[str, None] = {}
    outside = []
    for entry in names:
        if "\0" not in entry:
            whole = entry if is_url(entry) else os.path.join(source, entry)
            below = list(paths_below(source, [whole]))
            if below:
                paths[below[0][1]] = None
                continue
        outside.append(entry)
    return FileList(list(paths), outside)


def _is_pair(line: bytes) -> bool:
    words = line.split()
    return len(words) == 2 and words[1].lstrip(b"+-").isdigit()


def _read(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise CommandError(
            f"the list {name} cannot be read ({error.strerror}); name a file with one path a line, "
            f"or - for standard input"
        ) from error


def _called(name: str) -> str:
    return "on standard input" if name == "-" else name
