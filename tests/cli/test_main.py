"""The entry point: whatever command it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module

import pytest

from overlapiter.cli.main import COMMANDS

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


def test_each_command_that_works_on_a_directory_speaks_to_machines(source, tmp_path) -> None:
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
    (tmp_path / "list").write_text("\n".join(names))
    fast = tmp_path / "fast"
    for words, expected in (
        (("stage", tmp_path / "list", "--source", source, "--to", fast), ("fate", "staged")),
        (("check", fast), ("state", "good")),
        (("export", fast, tmp_path / "out"), ("n_copied", len(names))),
        (("evict", fast, "--all"), ("n_removed", len(names))),
    ):
        lines = overlapiter(*words, "--json").stdout.splitlines()
        assert expected in json.loads(lines[0]).items(), lines


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_and_says_what_its_exit_codes_mean(name: str) -> None:
    text = str(import_module(f"overlapiter.cli.{name}").__doc__)
    assert f"Examples:\n  overlapiter {name}" in text or f"overlapiter {name} " in text
    assert "\nexit code: " in text


def test_the_command_line_is_imported_in_less_than_200_milliseconds() -> None:
    code = "import time; t = time.process_time(); import overlapiter.cli.main; "
    words = [sys.executable, "-c", f"{code}print(time.process_time() - t)"]
    took = [float(subprocess.check_output(words, env=ENVIRONMENT)) for _ in range(3)]
    assert min(took) < 0.2
    heavy = "{'numpy', 'chainer', 'mpi4py', 'matplotlib', 'torch', 'rich'} & {*sys.modules}"
    words[2] = f"import sys, overlapiter.cli.main; print({heavy})"
    assert subprocess.check_output(words, env=ENVIRONMENT, text=True) == "set()\n"
