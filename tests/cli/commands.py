"""Runs commands as a user does: each in a process of its own, on real files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from overlapiter.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

# The command in a process in which files below a folder are slow to open.
SLOWLY = """
import sys
from bench.slowstore import SlowStore
from overlapiter.cli.main import main
root, seconds, rate, *words = sys.argv[1:]
with SlowStore(root, float(seconds), float(rate)) as store, store.installed():
    code = main(words)
sys.exit(code)
"""


def command(*words: object) -> list[str]:
    """Return what starts a command."""
    return [sys.executable, "-m", "overlapiter", *map(str, words)]


def slow_command(root: Path, open_seconds: float, rate: float, *words: object) -> list[str]:
    """Return what starts a command for which opening files below ``root`` is slow."""
    return [sys.executable, "-c", SLOWLY, str(root), str(open_seconds), str(rate), *map(str, words)]


def run(words: list[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it never leaves a traceback, and columns become words."""
    done = subprocess.run(
        words,
        env=ENVIRONMENT,
        input="" if stdin is None else stdin,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    done.stdout = re.sub(" {2,}", " ", done.stdout)  # columns
    return done


def overlapiter(*words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``overlapiter …`` to its end."""
    return run(command(*words), stdin)


def stage(*words: object) -> None:
    """Do what ``overlapiter stage …`` does, without a new Python, for tests of other commands."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with open(os.devnull, "w") as sys.stdout:
                status = main(["stage", *map(str, words)])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def without_privileges(words: list[str]) -> list[str]:
    """Return what starts a command for which modes of files hold, even if it is root's."""
    if os.geteuid():
        return words
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *words]


def staged_files(directory: Path) -> dict[str, bytes]:
    """Return the staged files of a staging directory with one source, by their place in it."""
    found = {}
    for top in directory.glob("*-????????????/files"):
        for path in top.rglob("*"):
            if path.is_file():
                found[str(path.relative_to(top))] = path.read_bytes()
    return found


def partial_files(directory: Path) -> list[Path]:
    """Return the files that are half-copied."""
    return list(directory.glob("*-????????????/partial/*"))
