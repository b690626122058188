"""Runs commands on real files: in this process, or as a user does, each in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import unittest.mock
from collections.abc import Iterable
from pathlib import Path

from overlapiter.cli.main import main
from tests.support.staged import (
    being_copied,
    blocks_on_disk,
    charged_bytes,
    read_staged,
    segments,
    staged_paths,
)

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

# The command in a process in which files below a folder are slow to open.
SLOWLY = """
import sys
from bench.slow.store import SlowStore
from overlapiter.cli.main import main
root, seconds, rate, *words = sys.argv[1:]
with SlowStore(root, float(seconds), float(rate)) as store, store.install():
    code = main(words)
sys.exit(code)
"""

# The command in a process in which some files never give an answer when they are opened, or when
# it is looked whether they are there, and which waits so long for one, and not long to be
# interrupted.
HANGING = """
import builtins, functools, os, sys, threading
from overlapiter.cli import crew, origins, sourcespeed
from overlapiter.cli.main import main
crew._PATIENCE_SECONDS = 0.5
origins.TIMEOUT_SECONDS = sourcespeed._TIMEOUT_SECONDS = float(sys.argv[1])
hanging = set(sys.argv[2].split(":"))
def hang(real, file, *others, **more):
    if isinstance(file, (str, bytes)) and os.fsdecode(file) in hanging:
        threading.Event().wait()
    return real(file, *others, **more)
builtins.open, os.scandir = functools.partial(hang, open), functools.partial(hang, os.scandir)
for name in ("isdir", "lexists", "realpath"):
    setattr(os.path, name, functools.partial(hang, getattr(os.path, name)))
sys.exit(main(sys.argv[3:]))
"""


def command(*words: object) -> list[str]:
    """Return what starts a command."""
    return [sys.executable, "-m", "overlapiter", *map(str, words)]


def slow_command(root: Path, open_seconds: float, rate: float, *words: object) -> list[str]:
    """Return what starts a command for which opening files below ``root`` is slow."""
    return [sys.executable, "-c", SLOWLY, str(root), str(open_seconds), str(rate), *map(str, words)]


def hanging_command(
    paths: Iterable[Path], *words: object, timeout_seconds: float = 60.0
) -> list[str]:
    """Return what starts a command to which some files give no answer."""
    hanging = ":".join(map(str, paths))
    return [sys.executable, "-c", HANGING, *map(str, (timeout_seconds, hanging, *words))]


def run(words: list[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a process of its own."""
    done = subprocess.run(
        words,
        env=ENVIRONMENT,
        input="" if stdin is None else stdin,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return _checked(done)


def overlapiter(*words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Do what ``overlapiter …`` does without a terminal, to its end, without a new Python.

    Not for ``bench``, which takes the place of the process. Bytes that are no UTF-8 become
    surrogates, as in paths.
    """
    texts = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with (
        unittest.mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO((stdin or "").encode()))),
        contextlib.redirect_stdout(texts[0]),
        contextlib.redirect_stderr(texts[1]),
    ):
        status = main([*map(str, words)])
    output, errors = (os.fsdecode(text.buffer.getvalue()) for text in texts)
    return _checked(subprocess.CompletedProcess(command(*words), status, output, errors))


def _checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return what came of a command, which never leaves a traceback; columns become words."""
    assert "Traceback" not in done.stderr, done.stderr
    done.stdout = re.sub(" {2,}", " ", done.stdout)  # columns
    return done


def stage(*words: object, stdin: str | None = None) -> None:
    """Stage files, for tests of other commands."""
    done = overlapiter("stage", *words, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr


def without_privileges(words: list[str]) -> list[str]:
    """Return what starts a command for which modes of files hold, even if it is root's."""
    if os.geteuid():
        return words
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *words]


def staged_files(directory: Path) -> dict[str, bytes]:
    """Return the staged files of a staging directory with one source, by their names below it."""
    found = staged_paths(directory)
    return {name: read_staged(directory, extent) for name, extent in found.items()}


def is_at_rest(directory: Path) -> bool:
    """Return whether nothing is half-done, and all that is charged is what the disk holds."""
    # A file of many pieces takes a block more, for the list of them.
    slack_bytes = blocks_on_disk(directory) - charged_bytes(directory)
    return not being_copied(directory) and 0 <= slack_bytes <= 4096 * len(segments(directory))
