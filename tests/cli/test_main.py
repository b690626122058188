"""The entry point: whatever command it is."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from .commands import ENVIRONMENT, REPOSITORY, command, overlapiter

# In the place of a module of which a command needs much, and which takes long to import.
SLOW = """
import os, time
os.write({fd}, b".")
time.sleep(60)
"""


def test_without_a_command_there_is_help() -> None:
    done = overlapiter()
    assert done.returncode == 2
    assert "measure the slow store" in done.stderr
    assert overlapiter("--help").returncode == 0
    assert overlapiter("--version").stdout.startswith("overlapiter ")
    assert "invalid choice: 'stag'" in overlapiter("stag").stderr


@pytest.mark.parametrize("module", ["sqlite3", "numpy"])  # of all commands, and of some
def test_an_interruption_while_it_is_loaded_ends_it_quietly(source, tmp_path, module) -> None:
    ours, theirs = os.pipe()
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / f"{module}.py").write_text(SLOW.format(fd=theirs))
    process = subprocess.Popen(
        command("stage", "-", "--source", source, "--to", tmp_path / "fast"),
        env={**ENVIRONMENT, "PYTHONPATH": f"{tmp_path / 'slow'}:{REPOSITORY}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(theirs,),
    )
    os.close(theirs)
    assert os.read(ours, 1) == b"."
    os.close(ours)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=100)
    assert (process.returncode, output, errors) == (130, b"", b"")
