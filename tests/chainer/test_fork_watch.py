"""Nothing that starts a process escapes the watch over forks, which the ranks of our jobs keep."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chainer.fork_watch import CAN_FORBID
from tests.chainer.scripts import run_script

#: Each way to copy this process's memory, and to end the copy.
COPIES = {
    "os.fork": "end(os.fork())",
    "os.forkpty": "end(os.forkpty()[0])",
    "pty.fork": "end(pty.fork()[0])",
    "multiprocessing": "run(multiprocessing.get_context('fork').Process(target=print))",
    "a pool": "multiprocessing.get_context('fork').Pool(1).terminate()",
    "MultiprocessIterator": "chainer_fork()",
    "preexec_fn": "subprocess.run(['true'], preexec_fn=print)",
    "C code": "end(ctypes.CDLL(None).fork())",
}
#: Ways to start a process without a copy.
STARTS = {
    "subprocess": "subprocess.run(['true'])",
    "os.posix_spawn": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "os.system": "os.system('true')",
    "C code": "ctypes.CDLL(None).system(b'true')",
}
#: Says nothing to an audit hook.
FORKSERVER = "forkserver.ensure_running()"

PROGRAM = """
import ctypes, multiprocessing, os, pty, subprocess, sys, threading
from multiprocessing import forkserver
from tests.chainer import fork_watch

def end(pid):
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)

def run(process):
    process.start()
    process.join()

def chainer_fork():
    import warnings
    warnings.simplefilter("ignore")
    from chainer.iterators import MultiprocessIterator
    iterator = MultiprocessIterator([1, 2], 1, n_processes=1, shared_mem=8)
    next(iterator)
    iterator.finalize()

if __name__ == "__main__":
    fork_watch.watch()
    {prelude}
    for statement in {statements}:
        fork_watch.copies.clear(), fork_watch.starts.clear()
        exec(statement)
        print(statement, bool(fork_watch.copies), bool(fork_watch.starts), sep=";", flush=True)
"""


def test_every_copy_of_the_memory_is_noticed_and_nothing_else_is_taken_for_one(
    tmp_path: Path,
) -> None:
    statements = [*COPIES.values(), *STARTS.values(), FORKSERVER]

    ended = run_script(tmp_path, PROGRAM.format(prelude="", statements=statements))

    seen = [line.rsplit(";", 2) for line in ended.stdout.splitlines() if line.count(";") >= 2]
    copied = {statement: copies == "True" for statement, copies, _ in seen}
    assert ended.returncode == 0, ended.stderr
    assert copied == {
        **dict.fromkeys(COPIES.values(), True),
        **dict.fromkeys([*STARTS.values(), FORKSERVER], False),
    }
    started = {statement for statement, _, starts in seen if starts == "True"}
    assert started >= {statement for name, statement in STARTS.items() if name != "C code"}


@pytest.mark.skipif(not CAN_FORBID, reason="the numbers of the system calls are not known")
@pytest.mark.parametrize(
    "statement",
    [
        COPIES["os.fork"],
        STARTS["subprocess"],
        STARTS["C code"],
        pytest.param(COPIES["C code"], marks=pytest.mark.slow),
        pytest.param(STARTS["os.posix_spawn"], marks=pytest.mark.slow),
        FORKSERVER,
    ],
)
def test_where_processes_are_forbidden_the_kernel_ends_whoever_starts_one(
    tmp_path: Path, statement: str
) -> None:
    thread = "run(threading.Thread(target=print, args=('a thread',)))"

    ended = run_script(
        tmp_path,
        PROGRAM.format(prelude="fork_watch.forbid_processes()", statements=[thread, statement]),
    )

    assert ended.stdout.splitlines() == ["a thread", f"{thread};False;False"]
    assert ended.returncode == -signal.SIGSYS
