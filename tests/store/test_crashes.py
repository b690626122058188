"""A process is killed at every system call of the store, or has it fail; see :mod:`.crashes`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.store.tracing import IS_POSSIBLE

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="system calls are counted on x86-64 alone")


def runs(*arguments: str) -> int:
    """Run the harness in a process that never opens an index; return how many runs there were."""
    command = [sys.executable, "-m", "tests.store.crashes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.fullmatch(r"(\d+) calls, (\d+) runs, 0 wrong\n", done.stdout)
    assert counts, done.stdout
    return int(counts[2])


@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_some_calls_at_which_a_process_is_killed_or_that_fail_do_no_harm(kind):
    assert runs(kind, "--sample", "50") == 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_no_call_at_which_a_process_is_killed_or_that_fails_does_harm(kind):
    assert runs(kind) > 800
