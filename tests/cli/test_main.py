"""The entry point: whatever command it is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overlapiter.cli import console
from overlapiter.cli.main import COMMANDS, main

from .commands import (
    ENVIRONMENT,
    REPOSITORY,
    command,
    hanging_command,
    overlapiter,
    run,
    stage,
)

COMMANDS_PAGE = (REPOSITORY / "docs/commands.md").read_text()
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


def test_streams_that_the_caller_has_closed_are_empty(source: Path, tmp_path: Path) -> None:
    for closing, words, status in (
        (">&-", ["ls", tmp_path / "fast"], 1),
        (">&-", ["simulate", "--examples", 100, "--policies", "naive"], 0),
        ("<&-", ["stage", "-", "--source", source, "--to", tmp_path / "fast"], 2),
    ):
        done = run(["sh", "-c", f'exec "$@" {closing}', "sh", *command(*words)])
        assert done.returncode == status, done.stderr
        assert ("standard input is empty" in done.stderr) == (status == 2)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])  # as in some locales
def test_output_that_a_locale_cannot_show_is_escaped(source, listing, tmp_path, encoding) -> None:
    words = ["env", f"PYTHONIOENCODING={encoding}", *command("simulate", "--help")]
    assert "--store N:RATE," in run(words).stdout
    stage(listing, "--source", source, "--to", tmp_path / "fast")
    odd = os.fsdecode(bytes(tmp_path) + b"/\xff")
    done = run([*words[:2], *command("export", tmp_path / "fast", odd)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"to {tmp_path}/\\udcff\n")


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


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--to", "{}"),
        *[("ls", "{}"), ("check", "{}"), ("evict", "{}", "--all"), ("export", "{}", "{}-too")],
    ],
)
def test_a_source_that_gives_no_answer_ends_each_command(source, fast, listing, words) -> None:
    stage(listing, "--source", source, "--to", fast)
    link = source.with_name("link")  # what is staged is known by the name of what it leads to
    link.symlink_to(source)
    words = [word.format(fast) for word in words]
    done = run(hanging_command([link], *words, "--source", link, timeout_seconds=0.5))
    assert done.returncode == 1
    assert f"{link}: no answer for 0.5 s; see whether it is mounted" in done.stderr


def test_progress_counts_bytes_only_where_there_are_any(monkeypatch, capsys) -> None:
    monkeypatch.setattr(console, "_QUIET_SECONDS", 0.0)
    with console.Progress(2, "policies") as shown:
        shown.advance()
    with console.Progress(2) as shown:
        shown.advance(3000)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "1 of 2 policies"
    assert second.startswith("1 of 2 files, 3.0 kB, ")


#: Of each command words with which it cannot do its work, and the exit code. ``{}`` is a folder.
FAILING = {
    "top": ("1 --once", 1),
    "trace": ("{}/none.json", 1),
    "plot": ("{}/none.json", 1),
    "bench": ("no-such-benchmark", 1),
    "completion": ("no-such-shell", 2),
    "stage": ("- --source {}/none --to {}/fast", 2),
    "status": ("{}/none", 1),
    "ls": ("{}/none", 1),
    "check": ("{}/none --reads-in-flight 0", 2),
    "evict": ("{}/none", 2),
    "export": ("{}/none {}/out", 1),
    "train": ("{}/none.py {}/none.txt", 2),
    "search": ("{}/none.toml {}/none.py {}/none.txt {}/none.txt", 2),
    "doctor": ("--source {}/none", 2),
    "plan": ("{}/none.json", 2),
    "simulate": ("--ranks 0", 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_json_and_documented_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"examples: overlapiter {name}" in text or f" overlapiter {name} " in text
    assert "exit code: " in text
    assert text.endswith("129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM")
    assert "--json" in text
    (codes,) = re.findall(r"\n\| command \| 1 \|\n(.*?)\n\n", COMMANDS_PAGE, re.DOTALL)
    assert f"`{name}`" in codes or name == "completion"


# In the place of the benchmarks: says how it was started.
SAYING = "import os, sys; print(os.getpid(), os.getcwd(), *sys.argv[1:])"


def test_a_benchmark_takes_the_place_of_the_command_so_that_signals_are_its_own(tmp_path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "bench" / "__main__.py").write_text(SAYING)
    words = command("bench", "--json", "some", "--out", "own.json")
    with subprocess.Popen(
        words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        said, _ = process.communicate(timeout=100)
    assert said == f"{process.pid} {tmp_path} some --out own.json --json\n"
    assert process.returncode == 0


def test_benchmarks_and_completion_speak_to_machines() -> None:
    listed = json.loads(run(command("bench", "--list", "--json")).stdout)
    assert any(line.split()[:1] == ["thousand"] for line in listed["lines"])
    completed = json.loads(overlapiter("completion", "bash", "--json").stdout)
    assert completed["shell"] == "bash"
    assert "--prometheus" in completed["script"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_cannot_work_says_why_and_what_to_do(name: str, tmp_path: Path) -> None:
    words, status = FAILING[name]
    done = run(command(name, *words.replace("{}", str(tmp_path)).split()))
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()[-1]) > 30
    assert [*tmp_path.iterdir()] == []


def test_the_command_line_is_imported_in_less_than_200_milliseconds() -> None:
    code = "import time; t = time.process_time(); import overlapiter.cli.main; "
    words = [sys.executable, "-c", f"{code}print(time.process_time() - t)"]
    took = [float(subprocess.check_output(words, env=ENVIRONMENT)) for _ in range(3)]
    assert min(took) < 0.2
    heavy = "{'numpy', 'chainer', 'mpi4py', 'matplotlib', 'torch', 'rich'} & {*sys.modules}"
    words[2] = f"import sys, overlapiter.cli.main; print({heavy})"
    assert subprocess.check_output(words, env=ENVIRONMENT, text=True) == "set()\n"
