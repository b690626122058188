"""Chainer's own machinery on top of the iterator: training, evaluation, snapshots."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import chainer
import numpy as np
import pytest
from chainer import training
from chainer.training import extensions

import overlapiter
from tests.chainer.conftest import Maker
from tests.chainer.iterator_datasets import numbered_images

N_TRAIN, N_VAL, BATCH_SIZE = 24, 10, 4


class Classifier(chainer.Chain):
    """A linear classifier whose parameters follow from nothing but their shape."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.linear = chainer.links.Linear(3 * 32 * 32, N_TRAIN, initialW=0.0)

    def forward(self, pixels: Any, labels: Any) -> Any:
        loss = chainer.functions.softmax_cross_entropy(self.linear(pixels / 255), labels)
        chainer.report({"loss": loss}, self)
        return loss


def trainer_of(
    make: Maker, folder: Path, out: Path, n_epochs: int, converter: Any
) -> training.Trainer:
    np.random.seed(0)
    train = make(numbered_images(folder, N_TRAIN), BATCH_SIZE)
    val = make(numbered_images(folder, N_VAL), BATCH_SIZE, repeat=False, shuffle=False)
    model = Classifier()
    optimizer = chainer.optimizers.SGD(lr=1e-4).setup(model)
    updater = training.StandardUpdater(train, optimizer, converter=converter)
    trainer = training.Trainer(updater, (n_epochs, "epoch"), out=str(out))
    evaluator = extensions.Evaluator(val, model, converter=converter)
    trainer.extend(evaluator, trigger=(3, "iteration"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    # In the middle of an epoch, too.
    trainer.extend(extensions.snapshot(), trigger=(5, "iteration"))
    return trainer


def log_of(trainer: training.Trainer) -> list[dict[str, float]]:
    entries = trainer.get_extension("LogReport").log
    return [{k: v for k, v in entry.items() if k != "elapsed_time"} for entry in entries]


@pytest.fixture(scope="module")
def expected_log(
    image_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, float]]:
    """The log of three epochs with Chainer's serial iterator and converter."""
    out = tmp_path_factory.mktemp("serial")
    make = Maker("serial", image_folder, out)
    convert = chainer.dataset.concat_examples
    trainer = trainer_of(make, image_folder, out, 3, convert)
    trainer.run()
    return log_of(trainer)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ((0.5, "epoch"), 0.5),
        ((3, "iteration"), 3 * BATCH_SIZE / N_TRAIN),
        (lambda trainer: trainer.updater.iteration >= 3, None),
    ],
)
def test_a_trainer_with_a_loading_report_tells_its_end_and_nothing_is_staged_beyond(
    image_folder: Path, tmp_path: Path, stop: Any, expected: float | None
) -> None:
    dataset = numbered_images(image_folder, N_TRAIN)
    # The constructor runs ahead, before there is a trainer.
    staging = overlapiter.Staging(tmp_path / "fast", keep_free=0, look_ahead=1)
    with overlapiter.OverlapIterator(dataset, BATCH_SIZE, staging=staging) as iterator:
        optimizer = chainer.optimizers.SGD(lr=1e-4).setup(Classifier())
        updater = training.StandardUpdater(iterator, optimizer)
        trainer = training.Trainer(updater, stop, out=str(tmp_path))
        trainer.extend(overlapiter.LoadingReport())
        told: list[float | None] = []
        trainer.extend(lambda _trainer: told.append(iterator.epochs))
        trainer.extend(lambda _trainer: time.sleep(0.3), trigger=(3, "iteration"))
        trainer.run(show_loop_exception_msg=False)
        assert told == [expected] * 3
        n_beyond = iterator.stats().files_staged - 3 * BATCH_SIZE
        assert (n_beyond == 0) == (expected is not None)


CONVERTERS = {"its own": overlapiter.concat_examples, "Chainer's": chainer.dataset.concat_examples}


@pytest.mark.parametrize("converter", CONVERTERS)
def test_a_training_gives_the_log_of_the_serial_iterator(
    make_ours: Maker,
    image_folder: Path,
    tmp_path: Path,
    expected_log: list[dict[str, float]],
    converter: str,
) -> None:
    trainer = trainer_of(make_ours, image_folder, tmp_path, 3, CONVERTERS[converter])
    trainer.run()

    assert log_of(trainer) == expected_log
    assert len(expected_log) == 18
    losses = [entry.get("validation/main/loss") for entry in expected_log][2::3]
    assert len(set(losses)) == 6
    assert losses[-1] < losses[0]


def test_a_training_that_is_resumed_in_the_middle_of_an_epoch_ends_that_epoch_the_same(
    make_ours: Maker, image_folder: Path, tmp_path: Path, expected_log: list[dict[str, float]]
) -> None:
    convert = overlapiter.concat_examples
    trainer_of(make_ours, image_folder, tmp_path, 1, convert).run()
    resumed = trainer_of(make_ours, image_folder, tmp_path, 1, convert)
    resumed.get_extension("LogReport").log.clear()
    chainer.serializers.load_npz(tmp_path / "snapshot_iter_5", resumed)
    assert resumed.updater.iteration == 5
    assert resumed.updater.get_iterator("main").current_position == 20

    resumed.run()

    assert log_of(resumed)[-1] == expected_log[5]


def test_a_snapshot_of_the_serial_iterator_is_continued_by_ours(
    make_ours: Maker, image_folder: Path, tmp_path: Path, expected_log: list[dict[str, float]]
) -> None:
    convert = chainer.dataset.concat_examples
    serial = Maker("serial", image_folder, tmp_path)
    trainer_of(serial, image_folder, tmp_path, 1, convert).run()
    resumed = trainer_of(make_ours, image_folder, tmp_path, 1, convert)
    chainer.serializers.load_npz(tmp_path / "snapshot_iter_5", resumed)

    resumed.run()

    assert log_of(resumed)[-1] == expected_log[5]


def test_the_trainer_ends_all_iterators_after_its_run_and_after_an_exception(
    make_ours: Maker, image_folder: Path, tmp_path: Path
) -> None:
    convert = overlapiter.concat_examples
    trainer = trainer_of(make_ours, image_folder, tmp_path, 1, convert)

    @training.make_extension(trigger=(2, "iteration"))
    def interrupt(_: training.Trainer) -> None:
        raise KeyboardInterrupt

    trainer.extend(interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()

    for iterator in make_ours._made:
        with pytest.raises(NotImplementedError):
            iterator.reset()


def test_the_progress_bar_of_an_evaluation_works(make_ours: Maker, image_folder: Path) -> None:
    val = make_ours(numbered_images(image_folder, N_VAL), BATCH_SIZE, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(val, Classifier(), progress_bar=True)

    results = [evaluator() for _ in range(3)]

    assert results[0] == results[1] == results[2]
    assert results[0]["main/loss"] == pytest.approx(np.log(N_TRAIN))
