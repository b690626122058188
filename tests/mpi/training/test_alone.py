"""A run in one process: what it writes, how it stops, how it goes on, what it refuses."""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import chainer
import numpy as np
import pytest

import overlapiter.mpi
from overlapiter.errors import OptionError, TrainingError
from overlapiter.mpi.training.curves import draw
from overlapiter.mpi.training.job import NoListener
from overlapiter.mpi.training.settings import read_toml
from overlapiter.options import Staging
from tests.mpi.waiting import wait_until
from tests.store.disks import mounted_tmpfs, run_as_root

from .counting import Counting
from .digits import build_model
from .jobs import (
    COUNTED_HERE,
    COUNTING,
    DIGITS,
    IMPATIENT,
    counts,
    epochs,
    run_training,
    same_weights,
    training_job,
    weights,
    write_digits,
    write_file,
    write_numbers,
)

pytestmark = pytest.mark.usefixtures("undrawn")

COUNTED = COUNTED_HERE


@pytest.fixture
def lists(tmp_path: Path) -> tuple[Path, Path]:
    """The lists of the digits to train on, and to validate with."""
    return write_digits(tmp_path)


@pytest.mark.usefixtures("fonts")
def test_a_run_leaves_all_that_it_promises_and_chainer_loads_its_weights(
    tmp_path: Path, lists: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapiter.mpi.training.outputs.draw", draw)
    out = tmp_path / "run"
    records = overlapiter.mpi.train(
        DIGITS, *lists, epochs=3, metrics="accuracy", learning_rate=0.01, out=out
    )
    assert records == epochs(out)
    assert [record["epoch"] for record in epochs(out)] == [1, 2, 3]
    last = epochs(out)[-1]
    assert {"loss", "val_loss", "val_accuracy", "examples", "seconds"} <= last.keys()
    assert last["examples"] == 600  # the tails of both files, too
    assert last["val_accuracy"] > 0.8
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    link = build_model()
    chainer.serializers.load_npz(out / "weights.npz", link)
    assert np.array_equal(link.second.W.array, weights(out)["second/W"])
    # The statistics of BatchNormalization are those of the training, not the first ones.
    assert np.abs(weights(out)["norm/avg_mean"]).max() > 0.01


def test_a_link_that_returns_its_loss_reports_its_accuracy(
    tmp_path: Path, lists: tuple[Path, Path]
) -> None:
    records = overlapiter.mpi.train(
        lambda: chainer.links.Classifier(build_model()),  # it reports a Variable
        *lists, epochs=1, loss="model", metrics="accuracy", validation="inline",
        learning_rate=0.01, out=tmp_path / "run",
    )  # fmt: skip
    assert records is not None
    assert records[-1]["val_accuracy"] > 0.6


class Placed(chainer.links.Linear):
    """Gets the shapes of its parameters on its device only."""

    is_placed = False

    def device_resident_accept(self, visitor: Any) -> None:
        self.is_placed = True
        super().device_resident_accept(visitor)

    def forward(self, pixels: Any) -> Any:
        assert self.is_placed
        return super().forward(pixels)


def test_a_link_is_on_its_device_before_it_sees_the_first_example(
    tmp_path: Path, lists: tuple[Path, Path]
) -> None:
    assert overlapiter.mpi.train(lambda: Placed(None, 10), *lists, epochs=1, out=tmp_path / "run")


class WithValues(chainer.Chain):
    """Has persistent values that have no mean in single precision."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.layer = chainer.links.Linear(None, 10)
        self.add_persistent("mask", np.array([0.0, -np.inf], np.float32))
        self.add_persistent("key", 123_456_789)
        self.add_persistent("is_used", np.array([True, False]))

    def forward(self, pixels: Any) -> Any:
        assert self.key == 123_456_789
        return self.layer(pixels)


@pytest.mark.parametrize("algorithm", ["downpour", "easgd"])
def test_a_link_keeps_its_masks_and_its_large_whole_numbers(
    tmp_path: Path, lists: tuple[Path, Path], algorithm: str
) -> None:
    overlapiter.mpi.train(WithValues, *lists, epochs=1, algorithm=algorithm, out=tmp_path / "run")
    arrays = weights(tmp_path / "run")
    assert arrays["mask"].tolist() == [0.0, -np.inf]
    assert arrays["key"] == 123_456_789
    assert arrays["is_used"].tolist() == [True, False]


def test_the_settings_that_a_run_writes_repeat_it(tmp_path: Path, lists: tuple[Path, Path]) -> None:
    first = tmp_path / "1 \N{PARTY POPPER}"
    overlapiter.mpi.train(DIGITS, *lists, epochs=1, seed=5, features="features", out=first)
    words = ("--settings", first / "settings.toml", "--out", "2")
    ended = run_training(tmp_path, 0, DIGITS, *lists, *words)
    assert ended.exit_status == 0, ended.output
    assert same_weights(first, tmp_path / "2")
    assert ended.output.startswith("epoch 1/1   loss ")
    head = (tmp_path / "2" / "settings.toml").read_text().splitlines()[0]
    assert head.endswith(f"{lists[1]} --settings 2/settings.toml --out other")


def test_the_settings_can_be_read_whatever_bytes_paths_have(tmp_path: Path) -> None:
    listing = write_numbers(tmp_path).rename(tmp_path / "two\nlines.txt")
    out = tmp_path / os.fsdecode(b"bytes\xff")
    overlapiter.mpi.train(COUNTING, listing, **COUNTED, epochs=1, seed=5, out=out)
    found = read_toml(str(out / "settings.toml"))
    assert found["seed"] == 5
    assert "out" not in found


def test_another_seed_shuffles_files_and_examples_otherwise(tmp_path: Path) -> None:
    listing = write_numbers(tmp_path)
    seen: dict[object, list[int]] = {}

    for key, seed, is_shuffled in (("0", 0, True), ("1", 1, True), ("plain", 0, False)):

        class Noting(Counting):
            def __init__(self, key: str = key) -> None:
                super().__init__(100)
                self.numbers = seen.setdefault(key, [])

            def gradient(self, batch: Any, gradient: Any, seed: int) -> list[float]:
                self.numbers += batch[0].tolist()
                found: list[float] = super().gradient(batch, gradient, seed)
                return found

        overlapiter.mpi.train(
            Noting, listing, **COUNTED | {"epochs": 2}, seed=seed, shuffle=is_shuffled,
            out=tmp_path / key,
        )  # fmt: skip
    for numbers in seen.values():
        assert sorted(numbers[:100]) == sorted(numbers[100:]) == [*range(100)]
    first, second = seen["0"][:100], seen["0"][100:]
    assert first != second != seen["1"][:100]
    assert seen["plain"] == [*range(100), *range(100)]
    files = [number // 37 for number in first]  # 0 for the first file
    assert files != sorted(files)


def test_a_single_last_example_joins_the_mini_batch_before_it(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Noting(Counting):
        def gradient(self, batch: Any, gradient: Any, seed: int) -> list[float]:
            sizes.append(len(batch[0]))
            found: list[float] = super().gradient(batch, gradient, seed)
            return found

    listing = write_numbers(tmp_path, (9, 6, 1))
    chosen: dict[str, Any] = {"epochs": 1, "piece_examples": 20, "shuffle": False}
    for batch in (4, 1):
        words = COUNTED | chosen | {"batch": batch}
        overlapiter.mpi.train(lambda: Noting(16), listing, **words, out=tmp_path / str(batch))
        assert counts(tmp_path / str(batch)) == [1] * 16
    assert sizes == [4, 5, 4, 2, 1, *[1] * 16]


@pytest.mark.parametrize("mode", ["workers", "inline"])
def test_all_ways_of_validating_give_the_same_numbers_and_weights(
    tmp_path: Path, lists: tuple[Path, Path], mode: str
) -> None:
    for validation in ("thread", mode):
        out = tmp_path / validation
        overlapiter.mpi.train(
            DIGITS, *lists, epochs=2, metrics="accuracy", validation=validation, out=out
        )
    assert same_weights(tmp_path / "thread", tmp_path / mode)
    for one, other in zip(epochs(tmp_path / "thread"), epochs(tmp_path / mode), strict=True):
        assert (one["val_loss"], one["val_accuracy"]) == (other["val_loss"], other["val_accuracy"])
    assert epochs(tmp_path / mode)[0]["val_loss"] != epochs(tmp_path / mode)[0]["loss"]


def test_the_worker_helps_a_validation_that_does_not_keep_up(tmp_path: Path) -> None:
    n_seen, n_seen_at_help, has_helped = [0], list[int](), threading.Event()

    class Behind(Counting):
        """Validates nothing in the thread before the worker does."""

        def gradient(self, batch: Any, gradient: Any, seed: int) -> list[float]:
            n_seen[0] += len(batch[0])
            found: list[float] = super().gradient(batch, gradient, seed)
            return found

        def evaluate(self, batch: Any) -> list[float]:
            if threading.current_thread() is threading.main_thread():
                n_seen_at_help.append(n_seen[0])
                has_helped.set()
            assert has_helped.wait(60)
            found: list[float] = super().evaluate(batch)
            return found

    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    lists, words = (write_numbers(tmp_path), [tmp_path / "v.h5"]), COUNTED | {"epochs": 9}
    overlapiter.mpi.train(lambda: Behind(100), *lists, **words, out=tmp_path / "run")
    assert n_seen_at_help[0] < 400  # of 900
    assert all("val_loss" in record for record in epochs(tmp_path / "run"))
    assert counts(tmp_path / "run") == [9] * 100


def test_models_are_built_before_the_training_whose_random_numbers_they_would_take(
    tmp_path: Path,
) -> None:
    builders: list[threading.Thread] = []

    def build() -> Counting:
        builders.append(threading.current_thread())
        return Counting(100)

    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    listing, words = write_numbers(tmp_path), COUNTED | {"epochs": 1, "out": tmp_path / "run"}
    overlapiter.mpi.train(build, listing, [tmp_path / "v.h5"], **words)
    assert builders == [threading.main_thread()] * 3


def test_a_model_file_imports_its_neighbours_when_it_builds_the_model_and_extends_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model.py").write_text(
        "import os, sys\n"
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\n"
        "def build_model():\n"
        "    from beside_the_model import N_EXAMPLES\n"
        "    from of_the_library import Counting\n"
        "    return Counting(N_EXAMPLES)\n"
    )
    (tmp_path / "beside_the_model.py").write_text("N_EXAMPLES = 100\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "of_the_library.py").write_text(
        "from tests.mpi.training.counting import Counting\n"
    )
    words: dict[str, Any] = COUNTED | {"epochs": 1, "out": tmp_path / "run"}
    overlapiter.mpi.train(tmp_path / "model.py", write_numbers(tmp_path), **words)
    assert sys.path.count(str(tmp_path)) == 1


def test_the_cpu_time_of_an_epoch_is_none_of_what_the_process_did_before(tmp_path: Path) -> None:
    began = time.process_time()  # after all that was imported
    listing = write_numbers(tmp_path)
    records = overlapiter.mpi.train(COUNTING, listing, **COUNTED, epochs=1, out=tmp_path / "run")
    assert records is not None
    assert records[0]["cpu_seconds"] <= time.process_time() - began


class Ended(Exception):
    pass


def end_after_two_epochs(record: dict[str, Any]) -> None:
    if record["epoch"] == 2:
        raise Ended


@pytest.mark.parametrize("algorithm", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("optimizer", ["adam"])
def test_a_run_that_was_ended_goes_on_exactly(
    tmp_path: Path, lists: tuple[Path, Path], algorithm: str, optimizer: str
) -> None:
    chosen: dict[str, Any] = {
        "epochs": 4, "algorithm": algorithm, "optimizer": optimizer, "validation": "inline",
        "sync_every": 3, "schedule": "3:0.1",
    }  # fmt: skip
    overlapiter.mpi.train(DIGITS, *lists, **chosen, out=tmp_path / "whole")
    with pytest.raises(Ended):
        overlapiter.mpi.train(
            DIGITS, *lists, **chosen, out=tmp_path / "ended", on_epoch=end_after_two_epochs
        )
    assert not (tmp_path / "ended" / "weights.npz").exists()
    overlapiter.mpi.train(DIGITS, *lists, **chosen, out=tmp_path / "ended")
    assert same_weights(tmp_path / "whole", tmp_path / "ended")
    for one, other in zip(epochs(tmp_path / "whole"), epochs(tmp_path / "ended"), strict=True):
        assert (one["loss"], one["val_loss"]) == (other["loss"], other["val_loss"])
    assert epochs(tmp_path / "whole")[2]["learning_rate"] == pytest.approx(1e-4)


def test_a_worker_does_not_take_its_state_of_another_run(
    tmp_path: Path, lists: tuple[Path, Path]
) -> None:
    words: dict[str, Any] = {"epochs": 3, "algorithm": "easgd", "sync_every": 3}
    words["validation"] = "inline"
    kept = []
    for seed in (0, 1):
        with pytest.raises(Ended):
            overlapiter.mpi.train(
                DIGITS,
                *lists,
                **words,
                seed=seed,
                restart=True,
                on_epoch=end_after_two_epochs,
                out=tmp_path / "1",
            )
        kept.append((tmp_path / "1" / "checkpoint-rank1.npz").read_bytes())
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    for out, state in (("1", kept[0]), ("2", b"")):
        (tmp_path / out / "checkpoint-rank1.npz").write_bytes(state)
        overlapiter.mpi.train(DIGITS, *lists, **words, seed=1, out=tmp_path / out)
    assert same_weights(tmp_path / "1", tmp_path / "2")


def test_a_worker_that_cannot_keep_its_state_says_so_once_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint-rank1.npz").mkdir(parents=True)  # in the way
    said: list[str] = []
    listener = NoListener()
    listener.say = said.append  # type: ignore[method-assign]  # for the test
    words: dict[str, Any] = COUNTED | {"algorithm": "easgd", "epochs": 3, "listener": listener}
    overlapiter.mpi.train(COUNTING, write_numbers(tmp_path), **words, out=tmp_path / "run")
    assert len(epochs(tmp_path / "run")) == 3
    assert len(said) == 1
    assert "its own state is not kept" in said[0]


@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_run_that_is_interrupted_amid_an_update_goes_on_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_signals: int
) -> None:
    def interrupt(record: dict[str, Any]) -> None:  # amid the message that ends the epoch
        for _ in range(n_signals if record["epoch"] == 2 else 0):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("overlapiter.mpi.training.interrupts._AT_ONCE_SECONDS", -1.0)
    handler, listing, said = signal.getsignal(signal.SIGINT), write_numbers(tmp_path), list[str]()
    listener = NoListener()
    listener.say = said.append  # type: ignore[method-assign]  # for the test
    words: dict[str, Any] = COUNTED | {"epochs": 3, "listener": listener, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        overlapiter.mpi.train(COUNTING, listing, **words, on_epoch=interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    where = "here" if n_signals == 1 else "its last checkpoint"  # the second one does not wait
    assert said.pop() == f"interrupted; the same command goes on from {where}"
    overlapiter.mpi.train(COUNTING, listing, **words)
    assert said == [f"going on from the checkpoint in {words['out']}, epoch {4 - n_signals}"]
    assert counts(tmp_path / "run") == [3] * 100


def test_signals_that_come_together_are_one_interrupt(tmp_path: Path) -> None:
    def interrupt(_n: int, _total: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    listener = NoListener()
    listener.progress = interrupt  # type: ignore[method-assign]  # for the test
    words: dict[str, Any] = COUNTED | {"epochs": 3, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        overlapiter.mpi.train(COUNTING, write_numbers(tmp_path), **words, listener=listener)
    assert (tmp_path / "run" / "checkpoint.npz").exists()


def test_a_run_that_is_interrupted_does_not_wait_for_a_validation_that_hangs(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    (tmp_path / "val.txt").write_text("v.h5\n")
    words = (COUNTING, write_numbers(tmp_path), "val.txt", "--batch", 2, "--epochs", 4000)
    fault = {"TRAINING_FAULT": "hung-validating:0:0", "TRAINING_WAIT_SECONDS": "0.01"}
    with training_job(tmp_path, 0, *words, program=IMPATIENT, environment=fault) as job:
        wait_until((tmp_path / "result" / "checkpoint.npz").exists)
        job.terminate()
        assert job.wait(60) == 143
    assert "the same command goes on from here" in (tmp_path / "output.txt").read_text()


def test_a_run_that_was_ended_amid_its_last_validation_goes_on_with_another_kind_or_none(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    listing, out = write_numbers(tmp_path), tmp_path / "result"
    words = (COUNTING, listing, tmp_path / "v.txt", "--batch", 2, "--epochs", 1)
    (tmp_path / "v.txt").write_text("v.h5\n")
    fault = {"TRAINING_FAULT": "hung-validating:0:0"}
    with training_job(tmp_path, 0, *words, program=IMPATIENT, environment=fault) as job:
        wait_until((out / "checkpoint.npz").exists)
        job.terminate()
        assert job.wait(60) == 143
    same: dict[str, Any] = {"batch": 2, "epochs": 1}
    more: dict[str, Any] = {"val_files": tmp_path / "v.txt", "validation": "inline"}
    for key, chosen in (("inline", more), ("none", {})):
        shutil.copytree(out, tmp_path / key)
        overlapiter.mpi.train(COUNTING, listing, **same, **chosen, out=tmp_path / key)
        assert [("val_loss" in record) for record in epochs(tmp_path / key)] == [bool(chosen)]


def test_a_run_that_was_stopped_early_while_later_epochs_were_validated_keeps_their_records(
    tmp_path: Path,
) -> None:
    seen: list[int] = []

    class Slow(Counting):
        """Does not validate the first epoch before three are trained."""

        def gradient(self, batch: Any, gradient: Any, seed: int) -> list[float]:
            seen.extend(batch[0].tolist())
            found: list[float] = super().gradient(batch, gradient, seed)
            return found

        def evaluate(self, batch: Any) -> list[float]:
            wait_until(lambda: len(seen) > 300)
            found: list[float] = super().evaluate(batch)
            return found

    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    words: dict[str, Any] = COUNTED | {"epochs": 5, "out": tmp_path / "run"}
    lists = write_numbers(tmp_path), [tmp_path / "v.h5"]
    for _ in range(2):
        overlapiter.mpi.train(lambda: Slow(100), *lists, **words, target="val_loss=9")
        assert [record["epoch"] for record in epochs(tmp_path / "run")] == [1]
    overlapiter.mpi.train(lambda: Slow(100), *lists, **words)
    assert [record["epoch"] for record in epochs(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert counts(tmp_path / "run") == [5] * 100


def test_a_run_that_was_ended_amid_an_epoch_uses_no_example_twice(tmp_path: Path) -> None:
    class Ending:
        """Ends the run after some mini-batches, each of which is in a checkpoint."""

        n = 0

        def __call__(self, n: int, _total: int) -> None:
            self.n += n
            if self.n > 130:
                raise Ended

    listener = NoListener()
    listener.progress = Ending()  # type: ignore[method-assign]  # for the test
    listing, out = write_numbers(tmp_path), tmp_path / "run"
    words: dict[str, Any] = COUNTED | {"epochs": 2, "checkpoint_seconds": 0.0, "out": out}
    with pytest.raises(Ended):
        overlapiter.mpi.train(COUNTING, listing, **words, listener=listener)
    overlapiter.mpi.train(COUNTING, listing, **words)
    assert counts(out) == [2] * 100
    assert [record["examples"] for record in epochs(out)] == [100, 100]


def test_a_run_that_has_come_to_its_end_goes_on_if_it_is_given_more_epochs(
    tmp_path: Path,
) -> None:
    listing, out = write_numbers(tmp_path), tmp_path / "run"
    for n_epochs in (1, 1, 3):
        overlapiter.mpi.train(COUNTING, listing, **COUNTED, epochs=n_epochs, out=out)
    assert counts(out) == [3] * 100


def test_a_run_goes_on_with_the_pieces_that_it_is_told_to_take(tmp_path: Path) -> None:
    words: dict[str, Any] = {**COUNTED, "out": tmp_path / "run"}
    listing = write_numbers(tmp_path)
    overlapiter.mpi.train(COUNTING, listing, **words, epochs=1)
    with pytest.raises(OptionError, match=r"has pieces of 14; leave --piece-examples out"):
        overlapiter.mpi.train(COUNTING, listing, **words, epochs=2, piece_examples=10)
    overlapiter.mpi.train(COUNTING, listing, **words, epochs=2, piece_examples=14)
    assert counts(tmp_path / "run") == [2] * 100
    write_numbers(tmp_path, (37, 5, 1, 40, 18))
    with pytest.raises(OptionError, match="train_files: have changed since the checkpoint"):
        overlapiter.mpi.train(COUNTING, listing, **words, epochs=3)


@pytest.mark.parametrize("length", [0, 1000])
def test_a_damaged_checkpoint_is_named_and_that_of_a_worker_is_done_without(
    tmp_path: Path, lists: tuple[Path, Path], length: int
) -> None:
    out = tmp_path / "run"
    for n_epochs in (1, 2):
        overlapiter.mpi.train(DIGITS, *lists, algorithm="gem", epochs=n_epochs, out=out)
        os.truncate(out / "checkpoint-rank1.npz", length)
    os.truncate(out / "checkpoint.npz", length)
    with pytest.raises(TrainingError, match=r"checkpoint\.npz cannot be read"):
        overlapiter.mpi.train(DIGITS, *lists, algorithm="gem", epochs=3, out=out)


def test_a_checkpoint_of_another_version_is_named(tmp_path: Path) -> None:
    words: dict[str, Any] = COUNTED | {"out": tmp_path / "run"}
    listing, path = write_numbers(tmp_path), tmp_path / "run" / "checkpoint.npz"
    overlapiter.mpi.train(COUNTING, listing, **words, epochs=1)
    with np.load(path) as file:
        arrays = dict(file)
    facts = json.loads(str(arrays.pop("facts")))
    del facts["piece_examples"]
    np.savez(path, **arrays, facts=np.array(json.dumps(facts)))
    with pytest.raises(TrainingError, match=r"without piece_examples.*begin anew with --restart"):
        overlapiter.mpi.train(COUNTING, listing, **words, epochs=2)


def test_a_checkpoint_that_does_not_fit_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    words: dict[str, Any] = COUNTED | {"epochs": 1, "out": tmp_path / "run"}
    listing, (soft, hard) = write_numbers(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    try:
        with pytest.raises(TrainingError, match=r"checkpoint\.npz cannot be written"):
            overlapiter.mpi.train(lambda: Counting(100_000), listing, **words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in (tmp_path / "run").glob("checkpoint*")] == []


def test_weights_that_cannot_be_written_leave_those_of_before(tmp_path: Path) -> None:
    class Failing(Counting):
        def save(self, path: str) -> None:
            Path(path).write_bytes(b"half of them")
            raise OSError("no room")

    listing, out = write_numbers(tmp_path), tmp_path / "run"
    overlapiter.mpi.train(COUNTING, listing, **COUNTED, epochs=1, out=out)
    with pytest.raises(OSError, match="no room"):
        overlapiter.mpi.train(lambda: Failing(100), listing, **COUNTED, epochs=2, out=out)
    assert counts(out) == [1] * 100
    assert [each.name for each in out.glob("weights*")] == ["weights.npz"]


def test_another_run_is_not_taken_for_the_one_that_was_ended(
    tmp_path: Path, lists: tuple[Path, Path]
) -> None:
    out = tmp_path / "run"
    overlapiter.mpi.train(DIGITS, *lists, epochs=1, out=out)
    with pytest.raises(OptionError, match="holds the checkpoint of a run with 32, not 64"):
        overlapiter.mpi.train(DIGITS, *lists, epochs=1, batch=64, out=out)
    overlapiter.mpi.train(DIGITS, *lists, epochs=1, batch=64, out=out, restart=True)
    assert len(epochs(out)) == 1


def test_a_run_with_other_arguments_of_the_model_is_not_taken_for_the_one_that_was_ended(
    tmp_path: Path,
) -> None:
    def build(dropout: float = 0.0, activation: object = None) -> Counting:
        assert callable(activation)
        return Counting(100 + round(dropout))

    listing, words = write_numbers(tmp_path), COUNTED | {"out": tmp_path / "run"}
    for n_epochs in (1, 2):  # of a function each process has another one
        words |= {"model.dropout": 0.1, "model.activation": lambda: None}
        overlapiter.mpi.train(build, listing, **words, epochs=n_epochs)
    written = (tmp_path / "run" / "settings.toml").read_text()
    with pytest.raises(OptionError, match=r"model\.dropout: .* of a run with 0\.1, not 0\.2"):
        overlapiter.mpi.train(build, listing, **words | {"model.dropout": 0.2}, epochs=3)
    del words["model.dropout"]
    with pytest.raises(OptionError, match=r"model\.dropout: .* of a run with 0\.1, not None"):
        overlapiter.mpi.train(build, listing, **words, epochs=3)
    assert (tmp_path / "run" / "settings.toml").read_text() == written


def test_nothing_is_left_to_go_on_from_once_a_run_has_begun_anew(tmp_path: Path) -> None:
    listing, out = write_numbers(tmp_path), tmp_path / "run"
    words: dict[str, Any] = COUNTED | {"algorithm": "easgd", "epochs": 2, "out": out}
    overlapiter.mpi.train(COUNTING, listing, **words)
    assert (out / "checkpoint.npz").exists()

    def interrupt(_n: int, _total: int) -> None:
        raise Ended

    listener = NoListener()
    listener.progress = interrupt  # type: ignore[method-assign]  # for the test
    with pytest.raises(Ended):
        overlapiter.mpi.train(COUNTING, listing, **words, restart=True, listener=listener)
    assert [*out.glob("checkpoint*")] == []


@pytest.mark.parametrize(
    ("chosen", "reason", "n_epochs"),
    [
        ({"early_stopping": "val_loss", "patience": 2, "learning_rate": 0.0}, "not improved", 3),
        ({"target": "val_accuracy=0.05", "metrics": ["accuracy"]}, "has reached", 1),
    ],
)
def test_a_run_stops_early_and_goes_on_with_all_examples_if_it_is_not_to_stop(
    tmp_path: Path,
    lists: tuple[Path, Path],
    chosen: dict[str, Any],
    reason: str,
    n_epochs: int,
) -> None:
    out = tmp_path / "run"
    words = {"epochs": 9, "optimizer": "sgd", "validation": "inline", "out": out} | chosen
    overlapiter.mpi.train(DIGITS, *lists, **words)
    assert len(epochs(out)) == n_epochs
    assert reason in json.loads((out / "history.json").read_text())["stopped_because"]
    words |= {"epochs": n_epochs + 1, "early_stopping": "", "target": ""}
    overlapiter.mpi.train(DIGITS, *lists, **words)
    assert [record["examples"] for record in epochs(out)] == [600] * (n_epochs + 1)


def test_the_caller_can_stop_a_run(tmp_path: Path, lists: tuple[Path, Path]) -> None:
    records = overlapiter.mpi.train(
        DIGITS, *lists, epochs=9, on_epoch=lambda record: record["epoch"] == 2,
        validation="inline", out=tmp_path / "run",
    )  # fmt: skip
    assert records is not None
    assert len(records) == 2


# --- data ---------------------------------------------------------------------------------------


def test_a_data_class_of_the_users_takes_the_place_of_hdf5(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import numpy as np\n"
        "class Rows:\n"
        "    def __init__(self, path):\n"
        "        self.rows = np.loadtxt(path, ndmin=2)\n"
        "    def __len__(self):\n"
        "        return len(self.rows)\n"
        "    def read(self, start, stop):\n"
        "        return self.rows[start:stop, 0].astype('i4'), self.rows[start:stop, 1]\n"
        "    def close(self):\n"
        "        pass\n"
    )
    for i in range(4):
        np.savetxt(tmp_path / f"{i}.txt", [(25 * i + k, 0) for k in range(25)])
    files = [tmp_path / f"{i}.txt" for i in range(4)]
    data = f"{tmp_path / 'rows.py'}:Rows"
    overlapiter.mpi.train(COUNTING, files, **COUNTED, epochs=2, data=data, out=tmp_path / "run")
    assert counts(tmp_path / "run") == [2] * 100


def test_a_data_class_that_exits_is_a_failed_run(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import sys, threading\n"
        "from overlapiter.mpi.training.data import Hdf5File\n"
        "class Rows(Hdf5File):\n"
        "    def __init__(self, path):\n"
        "        super().__init__(path, ('features', 'labels'))\n"
        "    def read(self, start, stop):\n"
        "        if threading.current_thread() is not threading.main_thread():\n"
        "            sys.exit(3)\n"
        "        return super().read(start, stop)\n"
    )
    words: dict[str, Any] = COUNTED | {"data": f"{tmp_path / 'rows.py'}:Rows"}
    with pytest.raises(TrainingError, match=r"numbers\d\.h5 cannot be read \(SystemExit: 3\)"):
        overlapiter.mpi.train(COUNTING, write_numbers(tmp_path), **words, out=tmp_path / "run")


def noting_opens(folder: Path) -> str:
    """Return a data class of HDF5 files that notes the paths that it opens, in ``opened``."""
    (folder / "rows.py").write_text(
        "from overlapiter.mpi.training.data import Hdf5File\n"
        "class Rows(Hdf5File):\n"
        "    def __init__(self, path):\n"
        "        super().__init__(path, ('features', 'labels'))\n"
        f"        with open({str(folder / 'opened')!r}, 'a') as log:\n"
        "            print(path, file=log)\n"
    )
    return f"{folder / 'rows.py'}:Rows"


def test_each_file_is_opened_once_before_the_training_begins(tmp_path: Path) -> None:
    words: dict[str, Any] = COUNTED | {"data": noting_opens(tmp_path)}
    listing = write_numbers(tmp_path)
    with pytest.raises(TrainingError, match="no parameters"):
        overlapiter.mpi.train(lambda: Counting(0), listing, **words, out=tmp_path / "run")
    assert len((tmp_path / "opened").read_text().splitlines()) == 5


@pytest.mark.parametrize("validation", ["thread", "workers", "inline"])
def test_files_are_staged_before_they_are_read(tmp_path: Path, validation: str) -> None:
    source = tmp_path / "slow"
    source.mkdir()
    listing, staging = write_numbers(source), tmp_path / "fast"
    write_file(source / "v.h5", [0, 1], [0, 0])
    overlapiter.mpi.train(
        COUNTING, listing, [source / "v.h5"], **COUNTED, epochs=2, staging=staging, source=source,
        validation=validation, out=tmp_path / "run",
    )  # fmt: skip
    assert counts(tmp_path / "run") == [2] * 100
    from overlapiter.store.inventory import Inventory

    inventory = Inventory(str(staging))
    try:
        (holding,) = inventory.holdings()
        assert holding["n_files"] == 6
        assert {run["end"] for run in inventory.runs(100)} == {"closed"}
    finally:
        inventory.close()


def test_files_are_read_from_their_copies_however_they_are_listed(tmp_path: Path) -> None:
    source = tmp_path / "slow"
    source.mkdir()
    write_numbers(source)
    listing = source / "other.txt"
    listing.write_text(f"./numbers0.h5\n../slow/numbers1.h5\n{source}//numbers2.h5\nnumbers4.h5\n")
    overlapiter.mpi.train(
        COUNTING, listing, **COUNTED, epochs=2, staging=tmp_path / "fast", source=source,
        data=noting_opens(tmp_path), out=tmp_path / "run",
    )  # fmt: skip
    opened = (tmp_path / "opened").read_text().splitlines()
    before, later = opened[:4], opened[4:]  # it looks at each file once before it trains
    assert all(path.startswith(str(source)) for path in before)
    assert later
    assert not any(path.startswith(str(source)) for path in later)


def test_a_run_whose_staging_directory_is_full_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = functools.partial(Staging, capacity=16384)  # the five files need more
    monkeypatch.setattr("overlapiter.mpi.training.reading.Staging", small)
    said: list[str] = []
    listener = NoListener()
    listener.say = said.append  # type: ignore[method-assign]  # for the test
    source, staging = tmp_path / "slow", tmp_path / "fast"
    source.mkdir()
    overlapiter.mpi.train(
        COUNTING, write_numbers(source), **COUNTED, epochs=2, staging=staging, source=source,
        listener=listener, out=tmp_path / "run",
    )  # fmt: skip
    assert counts(tmp_path / "run") == [2] * 100
    assert said == [
        f"{staging} has no room: files are read from {source}; `overlapiter evict` makes some"
    ]


def test_a_run_whose_staging_disk_is_sick_says_so_once_and_reads_the_source(tmp_path: Path) -> None:
    said: list[str] = []
    listener = NoListener()
    listener.say = said.append  # type: ignore[method-assign]  # for the test
    source = tmp_path / "slow"
    source.mkdir()
    with mounted_tmpfs(tmp_path / "disk", 1 << 20) as disk:
        run_as_root("mount", "-o", "remount,ro", str(disk))
        overlapiter.mpi.train(
            COUNTING, write_numbers(source), **COUNTED, epochs=20, staging=disk / "fast",
            source=source, listener=listener, out=tmp_path / "run",
        )  # fmt: skip
    assert counts(tmp_path / "run") == [20] * 100
    assert len(said) == 1
    assert "Read-only file system" in said[0]


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _shorten_labels(path: Path) -> None:
    write_file(path, np.zeros((310, 64), np.float32), np.zeros(309, np.int32))


def _soften_labels(path: Path) -> None:
    write_file(path, np.zeros((310, 64), np.float32), np.full(310, 0.9))


def _name_labels(path: Path) -> None:
    write_file(path, np.zeros((310, 64), np.float32), np.array([b"nine"] * 310))


def _enlarge_features(path: Path) -> None:
    write_file(path, np.full((310, 64), 1 << 32), np.zeros(310, np.int32))


def _reshape(path: Path) -> None:
    write_file(path, np.zeros((310, 32), np.float32), np.zeros(310, np.int32))


def _replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _rename(path: Path) -> None:
    path.rename(path.with_name("c.h5"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_damage, "b.h5 cannot be read as HDF5"),
        (_shorten_labels, "b.h5 has different numbers of examples: 310 of features, 309 of labels"),
        (_reshape, "must be alike"),
        (_enlarge_features, "b.h5 has whole numbers beyond 32 bits"),
        (_soften_labels, "b.h5 has labels of type float64 that do not fit --loss"),
        (_name_labels, "b.h5 has labels of type .S4 that do not fit --loss"),
        (_rename, "there is no .*b.h5"),
        (_replace_by_a_pipe, "b.h5 is no file"),
    ],
)
def test_files_that_cannot_be_trained_on_are_named(
    tmp_path: Path, lists: tuple[Path, Path], change: Any, words: str
) -> None:
    change(tmp_path / "b.h5")
    with pytest.raises((TrainingError, OptionError), match=words):
        overlapiter.mpi.train(DIGITS, *lists, epochs=1, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"features": "pictures"}, "has no data set pictures, only features, labels"),
        ({"loss": "mean_squared_error"}, "does not work on the first example"),
        ({"batch": 0}, "batch: 0 is too small"),
        ({"optimiser": "sgd"}, "is no setting"),
        ({"target": "accuracy"}, "write NAME=VALUE"),
        ({"schedule": "1-0.1"}, "write 'cosine'"),
        ({"schedule": "3:-1"}, "write 'cosine'"),
        ({"data": "data.py"}, "'data.py' names no class; write FILE.py:CLASS"),
        ({"momentum": 1.0}, "momentum: 1.0 is too large"),
        ({"beta": 1.5}, "beta: 1.5 is too large"),
        ({"quorum": 0.0}, "is no share of the workers"),
        ({"worker_timeout": 1e9}, "worker_timeout: 1000000000.0 is too large"),
        ({"synchronous": True, "algorithm": "gem"}, "gem has no such mode"),
        ({"masters": 1}, "start it by mpiexec"),
        ({"masters": 2, "algorithm": "easgd"}, "average gradients, and easgd sends none"),
        ({"masters": 2, "synchronous": True}, "are synchronous within their groups already"),
        ({"early_stopping": "val_accuracy"}, "is none of loss, val_loss"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, lists: tuple[Path, Path], chosen: dict[str, Any], words: str
) -> None:
    with pytest.raises((TrainingError, OptionError), match=words):
        overlapiter.mpi.train(DIGITS, *lists, **{"epochs": 1} | chosen, out=tmp_path / "run")


@pytest.mark.parametrize("chosen", [{"target": "val_loss=1"}, {"early_stopping": "val_loss"}])
def test_a_run_without_validation_files_is_not_to_be_stopped_by_them(
    tmp_path: Path, lists: tuple[Path, Path], chosen: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match="needs validation files"):
        overlapiter.mpi.train(DIGITS, lists[0], **chosen, out=tmp_path / "run")


def test_a_model_that_exits_is_a_failed_run(tmp_path: Path) -> None:
    words = (COUNTING, write_numbers(tmp_path), "--batch", 2)
    ended = run_training(tmp_path, 0, *words, environment={"TRAINING_FAULT": "exit:0:3"})
    assert ended.exit_status == 1
    assert "the model has called sys.exit(0)" in ended.output
    with pytest.raises(TrainingError, match="SystemExit: 0"):
        overlapiter.mpi.train(lambda: sys.exit(0), tmp_path / "numbers.txt", out=tmp_path / "run")


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(OptionError, match="names no file"):
        overlapiter.mpi.train(DIGITS, tmp_path / "empty.txt", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the model has no parameters"):
        overlapiter.mpi.train(lambda: Counting(0), write_numbers(tmp_path), out=tmp_path / "run")


def test_a_model_with_nan_is_refused(tmp_path: Path, lists: tuple[Path, Path]) -> None:
    def build() -> Any:
        link = build_model()
        link.second.b.array[3] = np.nan
        return link

    with pytest.raises(TrainingError, match="not finite: /second/b"):
        overlapiter.mpi.train(build, *lists, out=tmp_path / "run")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: overflows
def test_a_model_that_explodes_ends_the_run_with_the_names_of_its_parameters(
    tmp_path: Path, lists: tuple[Path, Path]
) -> None:
    with pytest.raises(TrainingError, match=r"the loss of a mini-batch is (nan|inf)"):
        overlapiter.mpi.train(
            DIGITS, *lists, optimizer="sgd", learning_rate=1e38, out=tmp_path / "run"
        )


class Overflowing(chainer.Chain):
    """Has a persistent value that is infinite once it has been trained."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.layer = chainer.links.Linear(None, 10)
        self.add_persistent("most", np.zeros(1, np.float32))

    def forward(self, pixels: Any) -> Any:
        if chainer.config.train:
            self.most[:] = np.inf
        return self.layer(pixels)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: inf - inf
def test_persistent_values_that_are_not_finite_end_the_run(
    tmp_path: Path, lists: tuple[Path, Path]
) -> None:
    with pytest.raises(TrainingError, match="after epoch 1 persistent values are not finite"):
        overlapiter.mpi.train(Overflowing, *lists, out=tmp_path / "run")
