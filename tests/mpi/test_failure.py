"""What ends a rank otherwise than well ends the job: one rank of an MPI that is feigned."""

from __future__ import annotations

import contextlib
import linecache
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from overlapiter import OverlapIterator
from overlapiter.errors import FailureWarning
from tests.chainer.scripts import ENVIRONMENT, REPOSITORY, run_script, write_script

Run = Callable[..., subprocess.CompletedProcess[str]]

#: Takes the place of mpi4py.MPI: rank 1 of 4, whose MPI_Abort ends the process.
MPI = """
import os
finalized = False
def Is_initialized():
    return True
def Is_finalized():
    return finalized
class COMM_WORLD:
    rank, size = 1, 4
    def Abort(code):
        os.write(1, b"abort\\n")
        os._exit(code)
"""

IMPORTS = """
import atexit, os, signal, sys, threading
from mpi4py import MPI
from overlapiter.mpi import abort_on_failure
atexit.register(lambda: print("the end"))
"""
BEGIN = IMPORTS + "abort_on_failure()\n"


RUNNER = ("-m", "overlapiter.mpi")


@pytest.fixture(params=[(), pytest.param(RUNNER, marks=pytest.mark.slow)], ids=["script", "runner"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a program as rank 1 of 4, by Python itself and by the runner."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(MPI)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    monkeypatch.setitem(ENVIRONMENT, "OVERLAPITER_NODE", "gpu17")

    def run(
        body: str, begin: str = BEGIN, runner: tuple[str, ...] = request.param
    ) -> subprocess.CompletedProcess[str]:
        return run_script(tmp_path, begin + textwrap.dedent(body), runner=runner)

    return run


def failure(reason: str) -> str:
    """Return the message."""
    return (
        f"overlapiter: rank 1 of 4, on node gpu17, has failed ({reason}); MPI_Abort ends the job, "
        f"for the other ranks would wait for it"
    )


CAUGHT_THEN = """
try:
    sys.exit(3)
except SystemExit as error:
    assert error.code == 3
"""


@pytest.mark.parametrize(
    ("body", "reason", "exit_status", "before"),
    [
        ("raise ValueError('no')", "ValueError", 1, "ValueError: no"),
        ("def f():\n    1 / 0\nf()", "ZeroDivisionError", 1, "ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "exit code 3", 3, ""),
        ("def f():\n    exit(3)\nf()", "exit code 3", 3, ""),
        (CAUGHT_THEN + "sys.exit(4)", "exit code 4", 4, ""),
        ("sys.exit('no list')", "exit code no list", 1, "no list"),
        ("sys.exit(256)", "exit code 256", 1, ""),
        ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_a_failure_is_printed_then_told_and_ends_the_job(
    run: Run, body: str, reason: str, exit_status: int, before: str
) -> None:
    ended = run(body)

    assert ended.returncode == exit_status
    *printed, last = ended.stderr.splitlines()
    assert last == failure(reason)
    assert (printed[-1] if printed else "") == before
    assert ended.stdout.splitlines().count("abort") == 1


@pytest.mark.parametrize("run", [()], indirect=True)
def test_an_exit_code_that_no_hook_is_told_takes_the_runner(run: Run) -> None:
    alone = run("raise SystemExit(3)")
    ended = run("raise SystemExit(3)", runner=RUNNER)

    assert (alone.returncode, alone.stderr) == (3, "")  # MPI_Finalize would wait
    assert (ended.returncode, ended.stderr.splitlines()) == (3, [failure("exit code 3")])
    assert run("raise SystemExit('no list')", runner=RUNNER).stderr.startswith("no list\n")


@pytest.mark.parametrize("run", [RUNNER], indirect=True)
def test_a_foreign_hook_and_a_thread_that_waits_for_others_take_the_runner(run: Run) -> None:
    ended = run("""
        sys.excepthook = lambda *_: print("theirs", file=sys.stderr)
        threading.Thread(target=threading.Event().wait).start()
        raise ValueError("no")
    """)

    assert ended.returncode == 1
    assert ended.stderr.splitlines() == ["theirs", failure("ValueError")]


@pytest.mark.parametrize("run", [RUNNER], indirect=True)
def test_the_runner_shows_the_traceback_that_python_would(run: Run) -> None:
    body = "def f():\n    1 / 0\nf()"
    assert run(body).stderr == run(body, runner=()).stderr


def test_the_runner_runs_a_program_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("n = 3\n")
    body = """
    import sys
    import beside
    from overlapiter import OverlapIterator

    class Squares:
        def __len__(self):
            return beside.n
        def __getitem__(self, index):
            return index ** 2

    if __name__ == "__main__":
        with OverlapIterator(Squares(), 3, shuffle=False, n_processes=1) as iterator:
            print(*next(iterator), *sys.argv[1:])
        sys.exit(5)
    """
    for words in (["program.py"], ["-m", "program"]):
        write_script(tmp_path, body)
        ended = subprocess.run(
            [sys.executable, *RUNNER, *words, "-m", "--help"],
            cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stdout) == (5, "0 1 4 -m --help\n"), ended.stderr
    missing = subprocess.run(
        [sys.executable, *RUNNER, "none.py"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert missing.returncode == 2
    assert missing.stderr.endswith("error: there is no none.py\n")


def test_an_exit_that_is_sent_to_another_process_is_a_plain_one(run: Run) -> None:
    ended = run("""
        import pickle
        try:
            sys.exit(3)
        except SystemExit as error:
            assert type(pickle.loads(pickle.dumps(error))) is SystemExit
            error.code = 0
            raise
    """)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_exit_that_the_script_imported_before_ends_the_job(run: Run) -> None:
    ended = run("leave(3)", begin=f"from sys import exit as leave\n{BEGIN}")

    assert ended.returncode == 3
    assert ended.stderr.splitlines() == [failure("exit code 3")]


def test_an_exit_does_not_wait_for_a_thread_that_waits_for_others(run: Run) -> None:
    ended = run("""
        threading.Thread(target=threading.Event().wait).start()
        sys.exit(3)
    """)

    assert ended.returncode == 3
    assert ended.stderr.splitlines() == [failure("exit code 3")]


def test_an_error_that_was_printed_long_ago_is_no_failure(run: Run) -> None:
    assert run("sys.last_value = ValueError('of a session in between')").returncode == 0


def test_without_standard_output_a_failure_ends_the_job(run: Run) -> None:
    ended = run("sys.stdout = None\nsys.exit(3)")

    assert ended.returncode == 3


@pytest.mark.parametrize(
    ("rank", "size", "is_warned"), [(0, 2, True), (1, 2, False), (0, 1, False)]
)
def test_rank_0_of_several_is_warned_that_nobody_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int, size: int, is_warned: bool
) -> None:
    mpi = SimpleNamespace(
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        COMM_WORLD=SimpleNamespace(
            rank=rank, size=size, Get_rank=lambda: rank, Get_size=lambda: size
        ),
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    expected = pytest.warns(FailureWarning, match="abort_on_failure")
    with expected if is_warned else contextlib.nullcontext(), OverlapIterator([1, 2], 1):
        pass
    assert not is_warned or expected[0].filename == __file__
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)  # a hook of the user
    for line, is_unseen in (("sys.exit(main())", False), ("raise SystemExit(main())", True)):
        (tmp_path / "program.py").write_text(f"    {line}\n")
        program = ModuleType("__main__")
        program.__file__ = str(tmp_path / "program.py")
        monkeypatch.setitem(sys.modules, "__main__", program)
        linecache.clearcache()
        expected = pytest.warns(FailureWarning, match="python -m overlapiter.mpi")
        with expected if is_warned and is_unseen else contextlib.nullcontext():
            OverlapIterator([1, 2], 1).finalize()


def test_a_hook_that_takes_the_place_of_ours_prints_and_the_job_ends_at_exit(run: Run) -> None:
    ended = run("""
        sys.excepthook = lambda *_: print("theirs", file=sys.stderr)
        raise ValueError("no")
    """)

    assert ended.returncode == 1
    assert ended.stderr.splitlines() == ["theirs", failure("ValueError")]


def test_a_failure_of_another_thread_ends_the_job(run: Run) -> None:
    ended = run("""
        def work():
            raise OSError("gone")
        thread = threading.Thread(target=work, name="watcher")
        thread.start()
        signal.pause()  # as if in a collective
    """)

    assert ended.returncode == 1
    *_, printed, last = ended.stderr.splitlines()
    assert printed == "OSError: gone"
    assert last == failure("OSError in watcher")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "sys.exit()",
        "sys.exit(0)",
        "raise SystemExit(0)",
        CAUGHT_THEN,
        CAUGHT_THEN + "sys.exit(0)",
        "thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()",
    ],
)
def test_a_good_end_is_quiet(run: Run, body: str) -> None:
    ended = run(body)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end\n", "")


@pytest.mark.parametrize(
    "prelude",
    [
        "del sys.modules['mpi4py.MPI']",
        "MPI.finalized = True",
        "MPI.Is_initialized = lambda: False",
        "MPI.COMM_WORLD.size = 1",
    ],
)
def test_without_others_who_wait_a_failure_ends_this_process_alone(run: Run, prelude: str) -> None:
    ended = run(f"{prelude}\nsys.exit(3)")

    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "the end\n", "")


def test_a_process_forked_from_a_rank_has_no_part_in_mpi(run: Run) -> None:
    ended = run("""
        pid = os.fork()
        if not pid:
            sys.exit(3)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 3
    """)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end\nthe end\n", "")


def test_what_is_added_twice_tells_once(run: Run) -> None:
    ended = run("""
        abort_on_failure()
        raise ValueError("no")
    """)

    assert ended.stderr.count("has failed") == 1
    assert ended.stderr.count("ValueError: no") == 1


#: The module of ChainerMN alone, without the rest of it, which needs a real MPI.
THEIRS = """
import importlib.util as util
(folder,) = util.find_spec("chainermn").submodule_search_locations
spec = util.spec_from_file_location("theirs", folder + "/global_except_hook.py")
theirs = sys.modules["chainermn.global_except_hook"] = util.module_from_spec(spec)
spec.loader.exec_module(theirs)
"""


@pytest.mark.parametrize(
    "calls", ["theirs.add_hook(); abort_on_failure()", "abort_on_failure(); theirs.add_hook()"]
)
def test_with_the_hook_of_chainermn_a_failure_is_told_once(run: Run, calls: str) -> None:
    ended = run(f"{THEIRS}\n{calls}\nraise ValueError('no')", IMPORTS)

    assert ended.stderr.count("ValueError: no") == 1
    assert ended.stderr.splitlines()[-1] == failure("ValueError")
    assert "Uncaught exception on rank" not in ended.stderr
    assert ended.stdout.count("abort") == 1
