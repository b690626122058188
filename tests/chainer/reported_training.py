"""A training in which time passes only where it is made to: what a report says can be foretold."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import chainer
import numpy as np
from chainer import training
from chainer.training import extensions

import overlapiter.chainer.extensions
from overlapiter import LoadingReport

BATCH_SIZE, N_EXAMPLES = 2, 8

Patch = Callable[[Any, str, Any], None]


class Clock:
    """Tells the seconds that were let pass.

    Args:
        patch: Replaces an attribute of a module, as ``monkeypatch.setattr`` does.
    """

    def __init__(self, patch: Patch) -> None:
        self.seconds = 0.0
        patch(
            overlapiter.chainer.extensions,
            "time",
            types.SimpleNamespace(perf_counter=lambda: self.seconds),
        )


class Iterator(chainer.iterators.SerialIterator):
    """Takes ``wait_seconds`` for each mini-batch."""

    def __init__(self, clock: Clock, wait_seconds: float, **options: Any) -> None:
        dataset = [np.full(1, i, np.float32) for i in range(N_EXAMPLES)]
        super().__init__(dataset, BATCH_SIZE, shuffle=False, **options)
        self.clock = clock
        self.wait_seconds = wait_seconds

    def __next__(self) -> Any:
        self.clock.seconds += self.wait_seconds
        return super().__next__()

    next = __next__


class Model(chainer.Chain):
    """Takes ``seconds`` for each mini-batch."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = seconds
        with self.init_scope():
            self.linear = chainer.links.Linear(1, 1, initialW=0)

    def forward(self, x: Any) -> Any:
        self.clock.seconds += self.seconds
        return chainer.functions.mean(self.linear(x.astype(np.float32)))


def trainer_of(
    clock: Clock,
    n_iterations: int,
    *reports: LoadingReport,
    iterator: Any,
    optimizer: Any = None,
    update_seconds: float = 1.0,
) -> training.Trainer:
    """Return a trainer with these reports, which spends 100 seconds more after each iteration."""
    optimizer = optimizer or chainer.optimizers.SGD()
    optimizer.setup(Model(clock, update_seconds))
    updater = training.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (n_iterations, "iteration"), out="out")
    for report in reports:
        trainer.extend(report)

    @training.make_extension(priority=training.PRIORITY_WRITER)
    def evaluate(_: Any) -> None:
        clock.seconds += 100

    trainer.extend(evaluate)
    return trainer


def log_of(trainer: training.Trainer) -> list[dict[str, float]]:
    """Return what ``LogReport`` has, without what it adds itself."""
    own = ("epoch", "iteration", "elapsed_time")
    entries = trainer.get_extension("LogReport").log
    return [{key: entry[key] for key in entry if key not in own} for entry in entries]


def with_log(trainer: training.Trainer, trigger: Any) -> training.Trainer:
    """Extend a trainer by ``LogReport``."""
    trainer.extend(extensions.LogReport(trigger=trigger))
    return trainer
