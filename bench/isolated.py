"""Runs one measurement in a fresh process, so that starts are cold and memory is clean.

A module that can be run this way ends with ``isolated.serve(function)`` under its main guard, or
calls it when its command line says ``--child``: ``function`` takes and returns a dict of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKOUT = Path(__file__).resolve().parent.parent
CHILD = "--child"


class RunFailedError(Exception):
    """A run ended without a result. Its own messages are on standard error."""


def call(module: str, request: dict) -> dict:
    """Run ``python -m module --child`` for one request and return its answer; blocks until then.

    Raises:
        RunFailedError: The process did not end well.
    """
    with tempfile.TemporaryDirectory(prefix="bench-run-") as directory:
        answer = Path(directory, "answer.json")
        command = [sys.executable, "-W", "ignore", "-m", module, CHILD, str(answer)]
        text = json.dumps(request)
        # Not through the pipes of the parent: an orphan that kept one open would block it.
        done = subprocess.run(command, input=text, text=True, cwd=CHECKOUT, check=False)
        if done.returncode != 0:
            raise RunFailedError(f"{module} ended with {done.returncode} for {text}")
        return json.loads(answer.read_text())


def is_child() -> bool:
    """Tell whether this process was started by :func:`call`."""
    return sys.argv[1:2] == [CHILD] and len(sys.argv) == 3


def serve(function: Callable[[dict], dict]) -> None:
    """Answer the request that :func:`call` sends."""
    answer = json.dumps(function(json.load(sys.stdin)))
    unfinished = sys.argv[2] + ".part"
    Path(unfinished).write_text(answer)
    os.replace(unfinished, sys.argv[2])
