"""The extensions that show how a training loads its data: the paragraph, and the progress bar."""

from __future__ import annotations

import io
from typing import Any

import chainer
import numpy as np
import pytest
from chainer import training

from overlapiter import OverlapIterator, PrintExplanation, ProgressBar

DATASET = [(np.full(1, i, np.float32), np.zeros(1, np.float32)) for i in range(8)]


class Ranks:
    """The communicator of a job in which another rank has waited longer."""

    rank = 0

    def gather_obj(self, told: Any, root: int = 0) -> list[Any]:
        """Return what both ranks tell."""
        del root
        return [told, (2.0, 1, "Rank 1: it waited.")]


def run(extension: training.Extension) -> None:
    with OverlapIterator(DATASET, 2, n_processes=1) as iterator:
        optimizer = chainer.optimizers.SGD()
        optimizer.setup(chainer.links.Classifier(
            chainer.links.Linear(1, 1), chainer.functions.mean_squared_error,
            accfun=chainer.functions.mean_squared_error,
        ))  # fmt: skip
        updater = training.StandardUpdater(iterator, optimizer)
        trainer = training.Trainer(updater, (2, "epoch"))
        trainer.extend(extension)
        trainer.run()


def test_a_paragraph_is_printed_for_each_epoch() -> None:
    out = io.StringIO()
    run(PrintExplanation(out=out))

    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("The trainer waited for data ") for line in lines)


def test_of_several_ranks_the_one_that_waited_the_longest_is_shown() -> None:
    out = io.StringIO()
    run(PrintExplanation(Ranks(), out=out))

    assert out.getvalue() == "Rank 1: it waited.\n" * 2


def test_the_progress_bar_says_how_long_data_was_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(ProgressBar(update_interval=1))

    shown = capsys.readouterr().out
    assert "this epoch [" in shown
    assert shown.count("examples/sec. Waited for data: ") == 8
