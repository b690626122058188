"""What ``LoadingReport`` reports, in trainings of Chainer's."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import chainer
import pytest
from chainer.training import extensions

from overlapiter import LoadingReport
from overlapiter.chainer.extensions import Interval, summarize
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, run_job
from tests.chainer.reported_training import (
    BATCH_SIZE,
    Clock,
    Iterator,
    log_of,
    trainer_of,
    with_log,
)

EVERY_TWO = (2, "iteration")
PLAIN = ("wait_seconds", "wait_share", "examples_per_second")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch.setattr)


def plain(entries: list[dict[str, float]]) -> list[list[float]]:
    return [[entry[name] for name in PLAIN] for entry in entries]


# --- one process ------------------------------------------------------------------------------


def test_waiting_is_put_in_proportion_to_updates_and_not_to_what_comes_between(
    clock: Clock,
) -> None:
    trainer = trainer_of(clock, 4, LoadingReport(trigger=EVERY_TWO), iterator=Iterator(clock, 3))
    with_log(trainer, EVERY_TWO).run()

    # Of each iteration 3 seconds are waited for 2 examples, and 1 is spent on them.
    assert plain(log_of(trainer)) == [[6, 0.75, 0.5]] * 2


def test_an_interval_is_an_epoch_if_nothing_else_is_said(clock: Clock) -> None:
    trainer = trainer_of(clock, 8, LoadingReport(), iterator=Iterator(clock, 3))
    with_log(trainer, (1, "epoch")).run()

    assert plain(log_of(trainer)) == [[12, 0.75, 0.5]] * 2


def test_without_a_communicator_mean_and_worst_and_total_are_the_same(clock: Clock) -> None:
    trainer = trainer_of(clock, 2, LoadingReport(trigger=EVERY_TWO), iterator=Iterator(clock, 3))
    with_log(trainer, EVERY_TWO).run()

    (entry,) = log_of(trainer)
    assert entry == {
        **{name + end: entry[name] for name in PLAIN for end in ("", "/worst")},
        "examples_per_second/total": 0.5,
    }


def test_the_last_mini_batch_of_a_dataset_counts_as_what_it_is(clock: Clock) -> None:
    iterator = Iterator(clock, 0, repeat=False)
    iterator.dataset = iterator.dataset[: BATCH_SIZE + 1]
    trainer = trainer_of(clock, 2, LoadingReport(trigger=EVERY_TWO), iterator=iterator)
    with_log(trainer, EVERY_TWO).run()

    assert log_of(trainer)[0]["examples_per_second"] == (BATCH_SIZE + 1) / 2


def test_what_a_gpu_has_not_done_yet_at_the_end_of_an_interval_counts_as_updating(
    clock: Clock,
) -> None:
    class Queue:  # in place of CuPy's device
        def synchronize(self) -> None:
            clock.seconds += 8

    device = object.__new__(chainer.backend.GpuDevice)
    device.device = Queue()
    trainer = trainer_of(clock, 4, LoadingReport(trigger=EVERY_TWO), iterator=Iterator(clock, 3))
    trainer.updater.get_optimizer("main").target._device = device
    with_log(trainer, EVERY_TWO).run()

    assert plain(log_of(trainer)) == [[6, 6 / 16, 4 / 16]] * 2


@pytest.mark.parametrize("n_iterations", [3, 4], ids=["amid an interval", "between intervals"])
def test_a_resumed_training_reports_as_one_that_was_not_interrupted(
    clock: Clock, n_iterations: int
) -> None:
    saved = io.BytesIO()
    for end in (n_iterations, 8):
        # What is waited for changes: were the first part lost, the report would differ.
        iterator = Iterator(clock, 3 if end == n_iterations else 7)
        report = LoadingReport(trigger=(4, "iteration"))
        trainer = with_log(trainer_of(clock, end, report, iterator=iterator), (4, "iteration"))
        if saved.tell():
            saved.seek(0)
            chainer.serializers.load_npz(saved, trainer)
        trainer.run()
        chainer.serializers.save_npz(saved, trainer)

    waits = [[entry["wait_seconds"], entry["wait_share"]] for entry in log_of(trainer)]
    before = 3 * 3 + 7 * 1 if n_iterations == 3 else 3 * 4
    assert waits == [[before, before / (before + 4)], [28, 28 / 32]]


def test_a_snapshot_of_a_trainer_that_did_not_have_it_can_be_loaded(clock: Clock) -> None:
    saved = io.BytesIO()
    trainer = with_log(trainer_of(clock, 2, iterator=Iterator(clock, 3)), EVERY_TWO)
    trainer.run()
    chainer.serializers.save_npz(saved, trainer)
    saved.seek(0)

    report = LoadingReport(trigger=EVERY_TWO)
    trainer = with_log(trainer_of(clock, 4, report, iterator=Iterator(clock, 3)), EVERY_TWO)
    with pytest.warns(UserWarning, match="The previous value of"):  # says Chainer's trigger
        chainer.serializers.load_npz(saved, trainer)
    trainer.run()

    assert plain(log_of(trainer)[1:]) == [[6, 0.75, 0.5]]


def test_the_iterator_is_left_as_it_was_also_by_a_training_that_fails(clock: Clock) -> None:
    iterator = Iterator(clock, 3)
    before = dict(vars(iterator))
    trainer = trainer_of(clock, 2, LoadingReport(), LoadingReport(), iterator=iterator)
    trainer.updater.get_optimizer("main").target.linear = None
    with pytest.raises(TypeError):
        trainer.run(show_loop_exception_msg=False)

    assert vars(iterator).keys() == before.keys()
    assert len(iterator.next()) == BATCH_SIZE


def test_every_iterator_is_watched_and_only_one_that_stages_has_a_staged_share(
    make: Maker, images: NumberedImages
) -> None:
    class Mean(chainer.Chain):
        def forward(self, pixels: Any, _: Any) -> Any:
            return chainer.functions.mean(self.linear(pixels))

    model = Mean()
    with model.init_scope():
        model.linear = chainer.links.Linear(3 * 32 * 32, 1)
    optimizer = chainer.optimizers.SGD().setup(model)
    # More mini-batches than are read ahead, so that some are read in each epoch.
    updater = chainer.training.StandardUpdater(make(images(40), 4), optimizer)
    trainer = with_log(chainer.training.Trainer(updater, (2, "epoch"), out="out"), (1, "epoch"))
    trainer.extend(LoadingReport())
    out = io.StringIO()
    trainer.extend(extensions.PrintReport(["wait_share", "staged_share/worst"], out=out))
    trainer.run()

    for entry in log_of(trainer):
        assert 0 <= entry["wait_share"] <= 1
        assert entry["examples_per_second"] > 0
        assert entry.get("staged_share/worst") == (1 if make.kind == "staged" else None)
    header, *rows = out.getvalue().splitlines()
    assert header.split() == ["wait_share", "staged_share/worst"]
    assert [len(row.removeprefix("\033[J").split()) for row in rows] == [
        2 if make.kind == "staged" else 1
    ] * 2


def test_an_iteration_costs_microseconds() -> None:
    class Immediate(chainer.iterators.SerialIterator):
        def next(self) -> Any:
            return ()

    optimizer = chainer.optimizers.SGD().setup(chainer.links.Linear(1, 1))
    updater = chainer.training.StandardUpdater(Immediate([0], 1), optimizer)
    trainer = chainer.training.Trainer(updater)
    report = LoadingReport()
    report.initialize(trainer)
    iterator, n_iterations = updater.get_iterator("main"), 200
    costs = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(n_iterations):
            iterator.next()
            report(trainer)
        costs.append((time.perf_counter() - begin) / n_iterations)
    report.finalize()

    assert min(costs) < 40e-6  # 4 on an idle core


# --- several ranks ----------------------------------------------------------------------------


def test_the_worst_rank_waits_longest_stages_least_and_is_slowest() -> None:
    entries = summarize([Interval(10, 1, 40, 3, 1), Interval(20, 8, 40, 1, 3), Interval()])

    assert entries == {
        "wait_seconds": 4.5,
        "wait_seconds/worst": 8,
        "wait_share": 0.25,
        "wait_share/worst": 0.4,
        "staged_share": 0.5,
        "staged_share/worst": 0.25,
        "examples_per_second": 3,
        "examples_per_second/worst": 2,
        "examples_per_second/total": 6,
    }


@pytest.mark.mpi
@NEEDS_MPIEXEC[1]
@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_rank_0_reports_mean_and_worst_with_one_collective_in_an_interval(
    tmp_path: Path, n_ranks: int
) -> None:
    ended = run_job("rank_reports.py", n_ranks, tmp_path)

    assert ended.exit_status == 0, ended.output
    # Rank r waits r + 1 seconds for each mini-batch and spends one on it.
    waits = [2.0 * (rank + 1) for rank in range(n_ranks)]
    shares = [(rank + 1) / (rank + 2) for rank in range(n_ranks)]
    rates = [2 / (rank + 2) for rank in range(n_ranks)]
    expected = {
        "wait_seconds": sum(waits) / n_ranks,
        "wait_seconds/worst": waits[-1],
        "wait_share": sum(shares) / n_ranks,
        "wait_share/worst": shares[-1],
        "examples_per_second": sum(rates) / n_ranks,
        "examples_per_second/worst": rates[-1],
        "examples_per_second/total": sum(rates),
    }
    for rank, result in enumerate(ended.results):
        assert result["log"] == ([pytest.approx(expected)] * 3 if rank == 0 else [{}] * 3)
        assert result["multi-node log"] == ([{"examples_per_second": 2}] if rank == 0 else [{}])
        assert result["collectives"] == ["gather_obj"] * 3
