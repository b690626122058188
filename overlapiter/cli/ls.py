"""List staged files, sorted: size, mtime of the source, how long ago they were staged, and path.

PATTERN is relative to the source, or absolute: `n03/*` and `n03` both stand for all files below
n03. `*` stands for any text, slashes included, `?` for a character, `[ab]` for one of some.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time

from overlapiter.store.inventory import StagedFile
from overlapiter.urls import is_url

from .console import duration_words, printable
from .place import add_directory, chosen, opened

EXAMPLES = """\
examples:
  overlapiter ls /nvme/me
  overlapiter ls /nvme/me 'n03/*.jpg'
  overlapiter ls /nvme/me --json | jq -r .path

exit code: 0, or 1 if no such file is staged, or the directory cannot be read"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "list")
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*", help="only these")
    parser.add_argument("--json", action="store_true", help="print an object of JSON a line")


def run(arguments: argparse.Namespace) -> int:
    """List; return the exit code."""
    with opened(arguments.directory) as inventory:
        sources = chosen(inventory, arguments.source)
        files = inventory.files(sources, pattern=arguments.pattern)
        line_of = _facts if arguments.json else _line
        for file in files:
            sys.stdout.buffer.write(os.fsencode(line_of(file)) + b"\n")
        sys.stdout.buffer.flush()
    return 0 if files.n_files else 1


def _line(file: StagedFile) -> str:
    mtime = "-"  # of a URL it is a number that stands for a version
    if not is_url(file.source.root):
        seconds = file.extent.mtime // 10**9
        mtime = datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    age = duration_words(max(0.0, time.time() - file.staged_seconds))
    path = printable(file.path) if sys.stdout.isatty() else file.path
    return f"{file.extent.size:>15,}   {mtime:16}   {age:>11}   {path}"


def _facts(file: StagedFile) -> str:
    _, _, _, _, size_bytes, mtime_ns, _ = file.extent
    facts = {"path": file.path, "source": file.source.root, "size_bytes": size_bytes}
    return json.dumps({**facts, "mtime_ns": mtime_ns, "staged_seconds": file.staged_seconds})
