"""List staged files, sorted: size, mtime of the source, how long ago they were staged, and path.

PATTERN is relative to the source, or absolute: `n03/*` and `n03` both stand for all files below
n03. `*` stands for any text, slashes included, `?` for a character, `[ab]` for one of some.

Examples:
  overlapiter ls /nvme/me
  overlapiter ls /nvme/me 'n03/*.jpg'
  overlapiter ls /nvme/me --json | jq -r .path

exit code: 0, or 1 if no such file is staged, or the directory cannot be read
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from overlapiter.store.inventory import StagedFile
from overlapiter.words import duration_words

from .console import printable
from .place import add_directory, chosen, listed, opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "list")
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*", help="only these")


def run(arguments: argparse.Namespace) -> int:
    """List; return the exit code."""
    write, is_terminal = sys.stdout.buffer.write, sys.stdout.isatty()
    now_seconds = time.time()
    with opened(arguments.directory) as inventory:
        files = listed(inventory, chosen(inventory, arguments), arguments, arguments.pattern)
        for file in files:
            line = _facts(file) if arguments.json else _line(file, now_seconds)
            write(os.fsencode(printable(line) if is_terminal else line) + b"\n")
        sys.stdout.buffer.flush()
    return 0 if files.n_files else 1


def _line(file: StagedFile, now_seconds: float) -> str:
    mtime = "-"  # that of a URL is a number that stands for a version
    if file.path.startswith("/"):
        mtime = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.extent.mtime // 10**9))
    age = duration_words(max(0.0, now_seconds - file.staged_seconds))
    return f"{file.extent.size:>15,}   {mtime:16}   {age:>11}   {file.path}"


def _facts(file: StagedFile) -> str:
    facts = {"path": file.path, "source": file.source.root, "size_bytes": file.extent.size}
    facts |= {"mtime_ns": file.extent.mtime, "staged_seconds": file.staged_seconds}
    return json.dumps(facts)
