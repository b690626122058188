"""A process is killed at every system call of the store, or has it fail; see :mod:`.crashes`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.tracing import IS_POSSIBLE

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="system calls are counted on x86-64 alone")


def runs(directory: Path, *arguments: str) -> int:
    """Run the harness in a process that never opens an index; return how many runs there were."""
    command = [sys.executable, "-m", "tests.store.crashes", *arguments]
    environment = {**os.environ, "TMPDIR": str(directory)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.fullmatch(r"(\d+) calls, (\d+) runs, 0 wrong\n", done.stdout)
    assert counts, done.stdout
    return int(counts[2])


@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_some_calls_at_which_a_process_is_killed_or_that_fail_do_no_harm(tmp_path, kind):
    assert runs(tmp_path, kind, "--sample", "20") == 20


@pytest.mark.slow
@pytest.mark.timeout(1500)  # there are many runs, of processes of their own
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_no_call_at_which_a_process_is_killed_or_that_fails_does_harm(tmp_path, kind):
    assert runs(tmp_path, kind) > 800
