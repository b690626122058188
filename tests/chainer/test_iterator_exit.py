"""However a program ends, its workers end with it, and silently."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.chainer.scripts import (
    ENVIRONMENT,
    Program,
    abandoned_memory,
    are_gone,
    complaints,
    run_script,
    wait_for_workers,
    wait_until,
)
from tests.support.leases import held_back
from tests.support.leftovers import memory_files
from tests.support.staged import being_copied, blocks_on_disk, charged_bytes, mend

START = """
    import os, sys, gc, time
    import overlapiter
    from tests.chainer.iterator_datasets import {dataset}

    def main():
        global it
        it = overlapiter.OverlapIterator({dataset}(40), 4, n_processes=2)
        other = overlapiter.OverlapIterator({dataset}(40), 4, n_processes=1, repeat=False)
        next(it), next(other)
        print("ready", flush=True)
        sys.stdin = None
        while not os.path.exists("go"):
            time.sleep(0.005)
        {ending}

    if __name__ == "__main__":
        main()
"""

ENDINGS = {
    "the end of the script": (
        "it.kept = [next(it) for _ in range(3)]; other.myself = other; del other",
        0,
        "",
    ),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "an exception": ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "os._exit": ("os._exit(4)", 4, ""),
}


WORKERS = {"ovl-supervisor": 2, "ovl-reader": 3}


def leave(tmp_path: Path, ending: str, dataset: str = "Pixels") -> tuple[int, str, bool]:
    """Run to the ending; return the exit status, the errors, whether all children ended soon."""
    with Program(tmp_path, START.format(ending=ending, dataset=dataset)) as program:
        program.wait_for("ready")
        wait_for_workers(WORKERS, psutil.Process(program.process.pid))
        children = program.descendants()
        (tmp_path / "go").touch()
        status = program.wait()
        return status, program.errors(), are_gone(children)


@pytest.mark.parametrize("ending", ENDINGS)
def test_without_finalize_all_children_end_silently(tmp_path: Path, ending: str) -> None:
    statement, expected_status, expected_error = ENDINGS[ending]

    status, errors, are_all_gone = leave(tmp_path, statement)

    assert status == expected_status
    assert are_all_gone
    lines = errors.splitlines()
    assert (lines[-1] if lines else "") == expected_error
    assert errors.count("Traceback") == bool(expected_error)


def test_an_iterator_that_is_collected_ends_its_workers_while_the_program_goes_on(
    tmp_path: Path,
) -> None:
    ending = """
        other.myself = other
        del other
        it = None
        gc.collect()
        print("collected", flush=True)
        while not os.path.exists("finish"):
            time.sleep(0.005)
"""
    with Program(tmp_path, START.format(ending=ending.strip(), dataset="Pixels")) as program:
        program.wait_for("ready")
        found = wait_for_workers(WORKERS, psutil.Process(program.process.pid))
        (tmp_path / "go").touch()
        program.wait_for("collected")
        assert are_gone(found)
        (tmp_path / "finish").touch()
        assert program.wait() == 0
        assert program.errors() == ""


@pytest.mark.parametrize("ending", ["it.finalize(); other.finalize()", "os._exit(0)"])
def test_processes_that_a_dataset_has_started_end_with_its_reader(
    tmp_path: Path, ending: str
) -> None:
    with Program(tmp_path, START.format(ending=ending, dataset="Pooled")) as program:
        program.wait_for("ready")
        children = program.descendants()
        pools = {p.pid for p in children if psutil.Process(p.ppid()).name() == "ovl-reader"}
        assert pools
        (tmp_path / "go").touch()
        assert program.wait() == 0
        assert are_gone(children)


def test_readers_that_are_stuck_do_not_delay_the_end(tmp_path: Path) -> None:
    ending = "stuck = overlapiter.OverlapIterator(Gated(8, 0, 'never'), 4, n_processes=1)"
    body = START.replace("import {dataset}", "import {dataset}, Gated")

    with Program(tmp_path, body.format(ending=ending, dataset="Pixels")) as program:
        program.wait_for("ready")
        children = program.descendants()
        (tmp_path / "go").touch()
        assert program.wait() == 0
        assert are_gone(children)
        assert program.errors() == ""


def test_killing_the_trainer_ends_all_children_and_leaves_no_shared_memory_nor_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path))
    before = memory_files()
    with Program(tmp_path, START.format(ending="pass", dataset="Slow")) as program:
        program.wait_for("ready")
        children = program.descendants()
        assert len(children) >= 5
        assert list(tmp_path.glob("pymp-*"))

        program.process.kill()

        assert are_gone(children)
        assert not list(tmp_path.glob("pymp-*"))
        assert complaints(program.errors()) == []
    wait_until(lambda: not abandoned_memory(before))  # other tests make some, and then map it


def test_killing_the_trainer_while_its_forkserver_imports_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path))
    (tmp_path / "slow.py").write_text("import time\nprint('imports', flush=True)\ntime.sleep(1)\n")
    body = """
    import multiprocessing
    import overlapiter

    if __name__ == "__main__":
        multiprocessing.set_forkserver_preload(["slow"])
        overlapiter.OverlapIterator(list(range(8)), 4, n_processes=1).next()
    """
    with Program(tmp_path, body) as program:
        program.wait_for("imports")
        children = program.descendants()
        assert list(tmp_path.glob("pymp-*"))

        program.process.kill()

        assert are_gone(children)
        assert not list(tmp_path.glob("pymp-*"))


def test_killing_the_trainer_ends_stuck_children_and_leaves_no_half_copied_file(
    tmp_path: Path,
) -> None:
    body = """
    import os, overlapiter
    from tests.chainer.iterator_datasets import DeclaredFiles

    if __name__ == "__main__":
        names = [str(i) for i in range(4)]
        staging = overlapiter.Staging("fast", source="source", n_prefetchers=2)
        it = overlapiter.OverlapIterator(
            DeclaredFiles("source", names), 4, shuffle=False, n_processes=2, staging=staging
        )
        print("ready", flush=True)
        next(it)
    """
    (tmp_path / "source").mkdir()
    for number in range(4):
        (tmp_path / "source" / str(number)).touch()
    with held_back(tmp_path / "source" / "0"), Program(tmp_path, body) as program:
        program.wait_for("ready")
        wait_until(lambda: being_copied(tmp_path / "fast"))
        children = program.descendants()

        program.process.kill()

        assert are_gone(children)
        assert complaints(program.errors()) == []
    mend(tmp_path / "fast", tmp_path / "source")
    assert being_copied(tmp_path / "fast") == set()
    assert charged_bytes(tmp_path / "fast") == blocks_on_disk(tmp_path / "fast") == 0


def test_iterators_of_the_module_end_silently_with_the_interpreter(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import overlapiter

        if __name__ == "__main__":
            iterators = [
                overlapiter.OverlapIterator(list(range(8)), 4, n_processes=1) for _ in range(3)
            ]
            untouched, asked, ended = iterators
            del iterators
            batches = [next(each) for each in (untouched, asked, ended)]
            asked.stats()
            ended.finalize()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_ignores_the_ends_of_its_children_has_them_replaced(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import signal
        import overlapiter

        if __name__ == "__main__":
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            iterator = overlapiter.OverlapIterator(
                list(range(8)), 4, shuffle=False, n_processes=2, maxtasksperchild=1
            )
            print([next(iterator)[0] for _ in range(6)])
            iterator.finalize()
        """,
    )
    assert (done.stdout, done.stderr) == ("[0, 4, 0, 4, 0, 4]\n", "")
