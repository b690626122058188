"""What goes wrong around a loader: no mini-batch changes, and nothing is left behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import random
import signal
import subprocess
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

from overlapiter import Skip, Staging  # noqa: E402
from overlapiter.errors import (  # noqa: E402
    BadExampleWarning,
    DatasetPicklingError,
    ExampleError,
    OptionError,
    PipelineError,
    StagingWarning,
    TooManyBadExamplesError,
    WorkerDiedError,
)
from overlapiter.scatter import ScatteredOrder  # noqa: E402
from overlapiter.torch import DataLoader  # noqa: E402
from tests.chainer.scripts import (  # noqa: E402
    Program,
    abandoned_memory,
    are_gone,
    kill_all,
    run_script,
    wait_for_workers,
    wait_until,
    workers,
)
from tests.conftest import make_images  # noqa: E402
from tests.support.interruptions import interrupted_at  # noqa: E402
from tests.support.leftovers import memory_files  # noqa: E402
from tests.torch import torch_datasets as D  # noqa: E402
from tests.torch.comparing import assert_same  # noqa: E402
from tests.torch.conftest import Pair  # noqa: E402


def expected(dataset: Any, batch_size: int) -> list[Any]:
    return list(data.DataLoader(dataset, batch_size))


# --- deaths -----------------------------------------------------------------------------------


def send_one(name: str, number: int) -> None:
    """Send a signal to one of our processes of this name, as soon as there is one."""
    victims: list[psutil.Process] = []
    wait_until(lambda: victims.extend(workers().get(name, [])) or victims)
    victims[0].send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("name", ["ovl-reader", "ovl-prefetcher", "ovl-supervisor"])
def test_a_worker_that_is_killed_or_stopped_changes_no_mini_batch(
    image_folder: Path, tmp_path: Path, name: str, number: int
) -> None:
    dataset = D.Images(image_folder, 64)
    staging = Staging(tmp_path / "fast", source=image_folder, n_prefetchers=1, keep_free=0)
    loader = DataLoader(dataset, 4, num_workers=2, staging=staging)
    found = []
    for step, batch in enumerate(loader):
        found.append(batch)
        if step in (1, 7):
            send_one(name, number)
    assert_same(found, expected(dataset, 4))
    loader.close()


class Dying(data.Dataset):
    """Kills its reader at one example."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("seed", [None, 1])
def test_an_example_that_kills_its_reader_again_and_again_is_named_and_the_rest_comes(
    plain_pair: Pair, seed: int | None
) -> None:
    iterator = iter(plain_pair.ours(Dying(), 2, seed=seed))
    assert_same([next(iterator), next(iterator)], [torch.tensor([0, 1]), torch.tensor([2, 3])])
    with pytest.raises(WorkerDiedError, match="example 5"):
        next(iterator)
    assert_same(list(iterator), [torch.tensor([6, 7])])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3")  # on fewer cores
def test_readers_that_cannot_be_started_while_one_lives_end_in_an_error_that_names_the_limits(
    plain_pair: Pair,
) -> None:
    iterator = iter(plain_pair.ours(D.Made("int", 1000), num_workers=3, timeout=60))
    next(iterator)
    wait_for_workers({"ovl-supervisor": 1, "ovl-reader": 3})
    (supervisor,) = workers()["ovl-supervisor"]
    most_files = supervisor.num_fds() + 4  # too few to have some to spare
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (most_files, most_files))
    kill_all(workers()["ovl-reader"][:2])
    with pytest.raises(PipelineError, match=r"limits of the job .*no descriptor is left"):
        list(iterator)


# --- examples ---------------------------------------------------------------------------------


def test_an_exception_has_the_index_and_the_files_as_its_cause(pair: Pair, tmp_path: Path) -> None:
    make_images(tmp_path / "source", 8)
    (tmp_path / "source" / "00005.jpg").unlink()
    if pair.staging is not None:
        pair.staging = Staging(tmp_path / "own", source=tmp_path / "source", keep_free=0)
    with pytest.raises(
        FileNotFoundError, match=r"Caught FileNotFoundError in DataLoader"
    ) as caught:
        list(pair.ours(D.Images(tmp_path / "source", 8), 2))
    cause = caught.value.__cause__
    assert isinstance(cause, ExampleError)
    assert cause.index == 5
    assert "00005.jpg" in str(cause)


@pytest.mark.parametrize("collate_fn", [None, D.to_list])
def test_bad_examples_are_left_out_up_to_the_limit(plain_pair: Pair, collate_fn: Any) -> None:
    dataset = D.Failing(ValueError("bad"), (1, 5, 6, 7, 4))
    options = {"collate_fn": collate_fn, "bad_examples": Skip(5)}
    loader = plain_pair.ours(dataset, 4, **options)
    with pytest.warns(BadExampleWarning, match="example 1") as warned:
        batches = list(loader)
    assert warned[0].filename == __file__
    lists = [batch.tolist() if collate_fn is None else batch for batch in batches]
    assert lists == [[0, 2, 3], [8, 9, 10, 11]]  # of the second one nothing is left
    assert [error.index for error in loader.skipped] == [1, 4, 5, 6, 7]
    strict = plain_pair.ours(dataset, 4, bad_examples=Skip(4))
    with pytest.warns(BadExampleWarning), pytest.raises(TooManyBadExamplesError):
        list(strict)


def test_a_mini_batch_of_which_nothing_is_left_is_passed_over_whatever_its_examples_hold(
    plain_pair: Pair,
) -> None:
    dataset = D.FailingNamed(ValueError("bad"), (0, 1, 4, 5))
    loader = plain_pair.ours(dataset, 2, bad_examples=Skip(4))
    with pytest.warns(BadExampleWarning, match="example 0"):
        names = [name for _, name in loader]
    assert names == [("2", "3"), ("6", "7"), ("8", "9"), ("10", "11")]
    assert [error.index for error in loader.skipped] == [0, 1, 4, 5]


def test_the_warning_of_a_bad_example_as_an_error_loses_no_mini_batch(plain_pair: Pair) -> None:
    dataset = D.Failing(ValueError("bad"), (1,))
    iterator = iter(plain_pair.ours(dataset, 4, bad_examples=Skip(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BadExampleWarning)
        with pytest.raises(BadExampleWarning, match="example 1"):
            next(iterator)
    lists = [batch.tolist() for batch in iterator]
    assert lists == [[0, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("end", [D.refuse, os._exit], ids=["raises", "dies"])
def test_of_a_dataset_that_gives_several_examples_at_once_only_bad_ones_are_left_out(
    plain_pair: Pair, end: Any
) -> None:
    loader = plain_pair.ours(D.Breaking(end), 4, num_workers=1, bad_examples=Skip(2))
    with pytest.warns(BadExampleWarning, match="example 2"):
        batches = [batch.tolist() for batch in loader]
    assert batches == [[0, 1, 3], [4, 5, 6], [8, 9, 10]]
    assert [error.index for error in loader.skipped] == [2, 7]


def test_a_dataset_that_leaves_or_ends_its_iteration_is_an_error_of_that_example(
    plain_pair: Pair,
) -> None:
    for error in (StopIteration(), SystemExit(3)):
        iterator = iter(plain_pair.ours(D.Failing(error, (2,)), 2))
        next(iterator)
        with pytest.raises(ExampleError, match="example 2"):
            next(iterator)
        assert next(iterator).tolist() == [4, 5]


def test_a_dataset_or_function_that_cannot_be_pickled_is_named(plain_pair: Pair) -> None:
    dataset = D.Made("int")
    dataset.transform = lambda value: value
    with pytest.raises(DatasetPicklingError, match=r"dataset\.transform cannot be sent"):
        iter(plain_pair.ours(dataset))
    with pytest.raises(DatasetPicklingError, match="collate_fn cannot be sent"):
        iter(plain_pair.ours(D.Made("int"), collate_fn=lambda batch: batch))


def test_a_wrapper_that_recurses_when_it_is_unpickled_is_named_and_works_once_mended(
    plain_pair: Pair,
) -> None:
    words = (
        r"__getattr__ of Wrapping calls itself for 'inner'.*"
        r"begin it with `if name == 'inner': raise AttributeError\(name\)`"
    )
    with pytest.raises(PipelineError, match=words):
        next(iter(plain_pair.ours(D.Wrapping(D.Made("int")))))
    mended = plain_pair.ours(D.Mended(D.Made("int")), 11)
    assert next(iter(mended)).tolist() == list(range(11))


def test_a_stall_gives_a_warning_that_says_what_is_waited_for(
    plain_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapiter.torch.epoch.STALL_SECONDS", 0.3)
    iterator = iter(plain_pair.ours(D.Slow(4, 1, 1.5), 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert next(iterator).tolist() == [0, 1]
    assert {each.category for each in caught} == {DataLoader.TimeoutWarning}
    assert {each.filename for each in caught} == {__file__}
    # At first it may be the start of the workers that is waited for.
    assert "is at example 1" in str(caught[-1].message)


def test_a_stall_names_an_example_whose_key_is_no_number(plain_pair: Pair) -> None:
    def time_out() -> bool:
        with pytest.raises(RuntimeError, match="timed out") as caught:
            next(iterator)
        return "is at example [5]" in str(caught.value.__cause__)

    dataset = D.Refusing([5], functools.partial(time.sleep, 60))
    iterator = iter(plain_pair.ours(dataset, 1, sampler=[[5]], timeout=0.3))
    wait_until(time_out)


def test_options_that_need_workers_say_so(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "fast", source=tmp_path)
    for options in ({"staging": staging}, {"bad_examples": "skip"}):
        with pytest.raises(OptionError, match="needs worker processes; give num_workers"):
            DataLoader([1], **options)
    loader = DataLoader(D.Made("int"), sampler=["a"], num_workers=1, staging=staging)
    with pytest.raises(OptionError, match="whole numbers as keys, not 'a'"):
        iter(loader)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (2**62, f"100 bytes of memory for each example, and the dataset's __len__ says {2**62}"),
        (NotImplementedError, "needs a dataset with a length"),
    ],
)
@pytest.mark.parametrize("sampler", [None, [1, 2]])
def test_a_length_that_cannot_be_staged_is_refused(
    tmp_path: Path, size: Any, words: str, sampler: Any
) -> None:
    staging = Staging(tmp_path / "fast", source=tmp_path)
    if sampler is None and isinstance(size, type):
        pytest.skip("PyTorch's sampler asks for it")
    loader = DataLoader(D.Sized(size), sampler=sampler, num_workers=1, staging=staging)
    with pytest.raises(OptionError, match=words):
        iter(loader)


@pytest.mark.parametrize("collate_fn", [None, D.OddBatch])
def test_a_mini_batch_that_cannot_be_shown_takes_the_memory_of_no_other_one(
    plain_pair: Pair, collate_fn: Any
) -> None:
    iterator = iter(plain_pair.ours(D.OddPairs(), 4, collate_fn=collate_fn))
    kept = []
    for start in range(0, 64, 8):
        with pytest.raises(LookupError, match="even"):
            next(iterator)
        gc.collect()  # the traceback, which holds what was to be shown
        kept.append((start + 4, next(iterator)))
    for start, batch in kept:
        tensor = batch if collate_fn else batch[0]
        assert tensor[:, 0].tolist() == [*range(start, start + 4)]


@pytest.mark.parametrize(
    "options", [{"bad_examples": "skip"}, {"sampler": ScatteredOrder(0, 1, 1)}]
)
def test_options_that_need_a_length_say_so(options: Any) -> None:
    with pytest.raises(OptionError, match="needs a dataset with a length"):
        DataLoader(D.Keyed(), **{"sampler": [1], "num_workers": 1, **options})


# --- disks ------------------------------------------------------------------------------------


def test_a_staging_disk_that_is_full_is_passed_by_with_one_warning(
    tmp_path: Path, image_folder: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        dataset = D.Images(image_folder, 64)
        staging = Staging(disk / "fast", source=image_folder, n_prefetchers=1, keep_free=0)
        loader = DataLoader(dataset, 4, num_workers=2, staging=staging)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert_same(list(loader), expected(dataset, 4))
        assert [each.category for each in caught] == [StagingWarning]
        assert caught[0].filename == __file__
        loader.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_warning_at_the_start_names_the_line_of_the_program(
    tmp_path: Path, image_folder: Path
) -> None:
    old = tmp_path / "fast" / f"source-{'0' * 12}"
    old.mkdir(parents=True)
    (old / "source.json").touch()  # of an earlier version
    staging = Staging(tmp_path / "fast", source=image_folder, keep_free=0)
    loader = DataLoader(D.Images(image_folder, 4), num_workers=1, staging=staging)
    with pytest.warns(StagingWarning, match="--old") as warned:
        iter(loader)
    assert warned[0].filename == __file__
    loader.close()


def test_a_capacity_keeps_what_the_known_order_needs_soonest(
    tmp_path: Path, image_folder: Path
) -> None:
    n_files, block_bytes = 64, 4096
    staging = Staging(
        tmp_path / "fast",
        source=image_folder,
        capacity=n_files // 2 * block_bytes,
        n_prefetchers=1,
        keep_free=0,
        look_ahead=2,
    )
    generator = torch.Generator().manual_seed(1)
    dataset = D.Images(image_folder, n_files)
    loader = DataLoader(
        dataset, 4, shuffle=True, generator=generator, num_workers=2, staging=staging
    )
    for _ in range(6):
        assert sorted(torch.cat([batch[1] for batch in loader]).tolist()) == list(range(n_files))
    stats = loader.stats()
    assert stats is not None
    # Without foresight half of the files in random order would be hit at most half of the time.
    assert stats.files_staged + stats.opens_source < 5 * n_files
    loader.close()


UNGUARDED = """
    from torch.utils.data import Dataset
    from overlapiter.torch import DataLoader

    class Own(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    for batch in DataLoader(Own(), 2, num_workers=1):
        print(batch)
"""


def test_a_script_that_starts_its_training_when_imported_is_told_what_to_do(tmp_path: Path) -> None:
    ended = run_script(tmp_path, UNGUARDED)
    assert ended.returncode == 1
    assert 'put what starts the training below `if __name__ == "__main__":`' in ended.stderr
    assert "bootstrapping" not in ended.stderr  # Python's own words


# --- ends -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("is_foreseen", [False, True])
def test_an_interruption_at_any_line_of_next_changes_no_order(
    image_folder: Path, tmp_path: Path, *, is_foreseen: bool
) -> None:
    staging = Staging(tmp_path / "fast", source=image_folder, keep_free=0, look_ahead=20)
    options = {"staging": staging} if is_foreseen else {}
    loader = DataLoader(D.Made("int", 4000), 2, num_workers=1, **options)
    iterator = iter(loader)
    n_lines = n_lost = expected = 0
    while n_lines < 1000:
        n_lines += 1
        is_interrupted, taken = interrupted_at(n_lines, iterator, "torch/epoch.py")
        if not is_interrupted:  # there is no such line any more
            break
        found = (next(iterator) if taken is None else taken).tolist()
        assert found[0] - expected in (0, 2)
        n_lost += found[0] != expected  # the sampler had given it, or it counted as taken
        expected = found[1] + 1
    assert 30 < n_lines < 1000
    assert n_lost <= 20
    loader.close()


def test_after_many_interruptions_the_next_mini_batch_comes(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(tmp_path / "fast", source=image_folder, keep_free=0, look_ahead=1)
    loader = DataLoader(D.Made("int", 100), 2, num_workers=1, staging=staging)
    iterator: Any = iter(loader)
    with monkeypatch.context() as patch:
        interrupt = signal.default_int_handler
        patch.setattr(iterator._pipeline, "take", lambda *_: interrupt(signal.SIGINT, None))
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
    assert [batch.tolist() for batch in itertools.islice(iterator, 2)] == [[0, 1], [2, 3]]
    loader.close()


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_an_epoch_of_persistent_workers_that_could_not_begin_can_be_begun_anew(
    plain_pair: Pair, error: type[BaseException]
) -> None:
    options = {"batch_sampler": D.Stumbling(error), "persistent_workers": True}
    loader = plain_pair.ours(D.Made("int", 6), **options)
    first = list(loader)
    with pytest.raises(error):
        iter(loader)
    assert_same(list(loader), first)


def test_after_an_error_of_the_sampler_the_same_workers_go_on(plain_pair: Pair) -> None:
    options = {"batch_sampler": D.Hesitating(), "num_workers": 2, "prefetch_factor": 1}
    iterator = iter(plain_pair.ours(D.Informed(), **options, collate_fn=D.to_list))
    found = [next(iterator) for _ in range(3)]
    with pytest.raises(LookupError):
        next(iterator)
    found += iterator
    assert [batch[0]["worker"][0] for batch in found] == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_after_an_interruption_as_much_is_staged_ahead_by_the_same_orders(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(tmp_path / "fast", source=image_folder, keep_free=0, look_ahead=20)
    loader = DataLoader(D.Made("int", 100), 2, num_workers=1, staging=staging)
    iterator: Any = iter(loader)
    pipeline = iterator._pipeline
    assert next(iterator).tolist() == [0, 1]
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "take", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert [batch.tolist() for batch in itertools.islice(iterator, 2)] == [[2, 3], [4, 5]]
    assert len(pipeline._wanted) == 21  # with the one that was taken last
    assert [*pipeline._orders[0]] == [0, 1]
    loader.close()


def test_a_loader_that_is_dropped_ends_its_workers() -> None:
    loader = DataLoader(D.Made("int"), 2, num_workers=2)
    iterator = iter(loader)
    batch = next(iterator)
    ours = wait_for_workers({"ovl-supervisor": 1, "ovl-reader": 2})
    del loader, iterator
    gc.collect()
    assert are_gone(ours)
    assert batch.tolist() == [0, 1]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
def test_an_iterator_that_has_raised_an_error_is_gone_when_it_is_dropped(
    plain_pair: Pair, error: BaseException
) -> None:
    iterator = iter(plain_pair.ours(D.Failing(error, (0,)), 2))
    with pytest.raises((ValueError, ExampleError)):
        next(iterator)
    left = weakref.ref(iterator)
    del iterator
    assert left() is None  # and the loader has its workers again


def test_in_a_forked_process_an_iterator_says_that_it_belongs_to_another(plain_pair: Pair) -> None:
    iterator = iter(plain_pair.ours(D.Made("int"), 2))
    next(iterator)
    pid = os.fork()
    if not pid:
        with contextlib.suppress(PipelineError):
            next(iterator)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(list(iterator)) == 5


PROGRAM = """
    import sys, time
    import torch
    from overlapiter.torch import DataLoader
    from tests.torch.torch_datasets import Made, Slow

    def main():
        loader = DataLoader({dataset}, 2, num_workers=2)
        iterator = iter(loader)
        try:
            print("ready", flush=True)
            while True:
                next(iterator)
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(5)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("dataset", ["Made('int', 10**6)", "Slow()"])
def test_ctrl_c_ends_the_program_and_no_worker_speaks(tmp_path: Path, dataset: str) -> None:
    with Program(tmp_path, PROGRAM.format(dataset=dataset)) as program:
        program.wait_for("ready")
        wait_until(lambda: "ovl-reader" in workers(psutil.Process(program.process.pid)))
        children = program.descendants()
        program.interrupt()
        program.wait_for("interrupted")
        assert program.wait() == 5
        assert are_gone(children)
        assert program.errors() == ""


def test_killing_the_trainer_ends_all_workers_and_leaves_no_memory(tmp_path: Path) -> None:
    before = memory_files()
    with Program(tmp_path, PROGRAM.format(dataset="Made('tensor', 10**6)")) as program:
        program.wait_for("ready")
        wait_until(lambda: "ovl-reader" in workers(psutil.Process(program.process.pid)))
        children = program.descendants()
        program.process.kill()
        assert are_gone(children)
    wait_until(lambda: not abandoned_memory(before))  # other tests make some, and then map it


@pytest.mark.slow
def test_many_kills_at_random_moments_change_no_mini_batch(
    image_folder: Path, tmp_path: Path
) -> None:
    numbers = random.Random(5)
    dataset = D.Images(image_folder, 64)
    staging = Staging(tmp_path / "fast", source=image_folder, n_prefetchers=2, keep_free=0)
    loader = DataLoader(dataset, 4, num_workers=2, staging=staging, persistent_workers=True)
    whole = expected(dataset, 4)
    for _ in range(20):
        found = []
        for batch in loader:
            found.append(batch)
            if numbers.random() < 0.1 and (them := workers()):
                victim = numbers.choice([each for team in them.values() for each in team])
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
        assert_same(found, whole)
    loader.close()
