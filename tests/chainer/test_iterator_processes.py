"""Which processes an iterator starts, and what they leave behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from overlapiter import OverlapIterator
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Pixels, indices_of
from tests.chainer.scripts import (
    PROMPT_SECONDS,
    are_gone,
    run_script,
    wait_for_workers,
    wait_until,
)

NO_FORK = """
    import multiprocessing, os, sys
    forks = []
    sys.addaudithook(lambda event, _: event in ("os.fork", "os.forkpty") and forks.append(event))
    os.register_at_fork(before=lambda: forks.append("fork"))

    import overlapiter
    from tests.chainer.iterator_datasets import Pixels, SourceFiles
    from tests.chainer.scripts import workers

    if __name__ == "__main__":
        names = [f"{i}.bin" for i in range(12)]
        for name in names:
            with open(name, "w") as file:
                file.write(name)
        os.makedirs("source"), [os.rename(name, f"source/{name}") for name in names]
        staging = overlapiter.Staging("fast", source="source", n_prefetchers=1)
        train = overlapiter.OverlapIterator(Pixels(10), 4, n_processes=2)
        val = overlapiter.OverlapIterator(
            SourceFiles("source", names), 4, repeat=False, n_processes=1, staging=staging
        )
        for _ in range(2):
            for _ in range(5):
                assert len(next(train)) == 4
            assert sum(map(len, val)) == 12
            val.reset()
        # A reader that dies is replaced, and not by this process.
        workers()["ovl-reader"][0].kill()
        for _ in range(20):
            next(train)
        train.finalize()
        del val
        assert multiprocessing.get_start_method(allow_none=True) is None
        multiprocessing.set_start_method("spawn")  # is still free to be chosen
        assert forks == [], forks
        print("no fork")
"""


def test_the_trainer_never_forks_and_the_global_start_method_stays_unset(tmp_path: Path) -> None:
    ended = run_script(tmp_path, NO_FORK)

    assert ended.stdout == "no fork\n", ended.stderr
    assert ended.stderr == ""


def test_the_processes_are_named_and_counted_as_asked_for(
    make_ours: Maker, images: NumberedImages
) -> None:
    iterator = make_ours(images(8), 4, n_processes=3)
    next(iterator)

    n_expected = {"ovl-supervisor": 1, "ovl-reader": 3}
    if make_ours.kind == "staged":
        n_expected["ovl-prefetcher"] = 1
    everyone = wait_for_workers(n_expected)
    iterator.finalize()
    assert are_gone(everyone)


def test_the_trainer_runs_no_thread_for_it(make_ours: Maker, images: NumberedImages) -> None:
    before = threading.enumerate()
    iterator = make_ours(images(8), 4)
    for _ in range(10):
        next(iterator)

    assert threading.enumerate() == before


def test_two_iterators_side_by_side_do_not_disturb_each_other(
    make_ours: Maker, images: NumberedImages
) -> None:
    train = make_ours(images(12), 4, shuffle=False)
    val = make_ours(images(5), 2, repeat=False, shuffle=False)

    for _ in range(3):
        assert [indices_of(next(train)) for _ in range(3)] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9, 10, 11],
        ]
        assert [indices_of(batch) for batch in val] == [[0, 1], [2, 3], [4]]
        val.reset()
    val.finalize()
    assert indices_of(next(train)) == [0, 1, 2, 3]


def belongings() -> dict[str, Any]:
    gc.collect()
    me = psutil.Process()
    return {
        "processes": {p.pid for p in me.children(recursive=True)},
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": me.num_threads(),
        "mappings": Path("/proc/self/maps").read_text().count("overlapiter"),
    }


def test_iterators_in_a_row_leave_nothing_behind(make_ours: Maker, images: NumberedImages) -> None:
    def use_one() -> None:
        iterator = make_ours.keep(
            OverlapIterator(
                images(8),
                4,
                n_processes=1,
                staging=make_ours.staging if make_ours.kind == "staged" else None,
            )
        )
        next(iterator)
        iterator.finalize()
        make_ours.finalize()

    use_one()  # starts the forkserver
    before = belongings()
    for _ in range(5):
        use_one()

    wait_until(lambda: belongings() == before, PROMPT_SECONDS)


def test_the_start_method_of_the_program_is_left_alone() -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    with OverlapIterator(Pixels(4), 2, n_processes=1) as iterator:
        next(iterator)

    assert multiprocessing.get_start_method(allow_none=True) == before


def test_a_forkserver_that_the_program_started_itself_is_used(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        """
        import multiprocessing
        import overlapiter, psutil
        from tests.chainer.iterator_datasets import Pixels

        if __name__ == "__main__":
            # As ChainerMN's guide has it, before MPI or CUDA start.
            multiprocessing.set_start_method("forkserver")
            process = multiprocessing.Process(target=int)
            process.start()
            process.join()
            before = set(psutil.Process().children())
            with overlapiter.OverlapIterator(Pixels(4), 2, n_processes=2) as it:
                print(len(next(it)), set(psutil.Process().children()) == before)
            print(process.exitcode, multiprocessing.get_start_method())
        """,
    )

    assert (ended.stdout, ended.stderr) == ("2 True\n0 forkserver\n", "")


@pytest.mark.parametrize("key", ["init_main_from_path", "main_path"])  # as up to 3.13.7, and later
def test_a_program_without_a_main_guard_works(tmp_path: Path, key: str) -> None:
    ended = run_script(
        tmp_path,
        f"""
        print("once")
        from multiprocessing import spawn
        tell = spawn.get_preparation_data
        spawn.get_preparation_data = lambda name: dict(tell(name), {key}=__file__)
        import overlapiter
        from tests.chainer.iterator_datasets import Pixels

        iterator = overlapiter.OverlapIterator(Pixels(4), 2, n_processes=2)
        print(len(next(iterator)))
        """,
    )

    assert (ended.stdout, ended.stderr) == ("once\n2\n", "")


#: A program with a dataset of its own, up to what it does.
MINE = """
import numpy as np
import overlapiter

class Mine:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.full(3, i)

if __name__ == "__main__":
"""


def test_a_program_may_run_in_pythons_debugger(tmp_path: Path) -> None:
    body = f"""{MINE}
    with overlapiter.OverlapIterator(Mine(), 2, shuffle=False, n_processes=1) as it:
        print([int(example[0]) for example in next(it)])
    """
    ended = run_script(tmp_path, body, runner=("-m", "pdb", "-c", "continue"))

    assert "[0, 1]\n" in ended.stdout, ended.stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_of_multiprocessings_may_train_with_a_dataset_of_the_script(
    tmp_path: Path, method: str
) -> None:
    body = f"""{MINE}
    import multiprocessing
    process = multiprocessing.get_context("{method}").Process(target=train)
    process.start()
    process.join()
    """
    train = """
def train():
    with overlapiter.OverlapIterator(Mine(), 2, shuffle=False, n_processes=1) as it:
        print([int(example[0]) for example in next(it)])

if"""
    ended = run_script(tmp_path, body.replace("\nif", train))

    assert (ended.stdout, ended.stderr) == ("[0, 1]\n", "")


@pytest.mark.parametrize("runner", [("-m", "package"), ("package",)])
def test_a_main_module_that_no_other_process_can_import_is_named(
    tmp_path: Path, runner: tuple[str, ...]
) -> None:
    (tmp_path / "package").mkdir()
    body = f"""{MINE}
    try:
        next(overlapiter.OverlapIterator(Mine(), 2, n_processes=1))
    except overlapiter.errors.PipelineError as error:
        print(error)
    """
    (tmp_path / "package" / "__main__.py").write_text(body)
    ended = run_script(tmp_path, "", runner=runner)

    assert ended.stdout.startswith("the dataset refers to something defined in"), ended.stdout
    assert ended.stderr == ""


def test_a_path_that_is_no_text_among_those_of_python_is_named(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        """
        import pathlib, sys
        import overlapiter
        from tests.chainer.iterator_datasets import Pixels

        sys.path.append(pathlib.Path("modules"))
        try:
            overlapiter.OverlapIterator(Pixels(4), 2)
        except overlapiter.errors.PipelineError as error:
            print(error)
        sys.path[-1] = str(sys.path[-1])
        print(len(next(overlapiter.OverlapIterator(Pixels(4), 2))))
        """,
    )

    assert ended.stdout.startswith("sys.path holds PosixPath('modules'), with which")
    assert (ended.stdout[-3:], ended.stderr) == ("\n2\n", "")
