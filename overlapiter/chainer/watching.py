"""Trainer extensions that show, while it runs, how a training loads its data."""

from __future__ import annotations

import sys
from typing import Any

from chainer import training
from chainer.training import extensions

from overlapiter.chainer.extensions import Communicator, gathered, stats_of
from overlapiter.stats import Stats


class PrintExplanation(training.Extension):
    """Trainer extension that prints what the trainer waits for, what to change, and what it brings.

    One paragraph for each interval, as :meth:`overlapiter.OverlapIterator.explain` gives it.

    Args:
        comm: ChainerMN's communicator: all ranks extend their trainers, and rank 0 prints for the
            rank that waited the longest; None for a training in one process.
        trigger: When an interval ends; it must fire in the same iteration on all ranks.
        iterator: The name that the updater has for the iterator, an ``OverlapIterator``.
        out: Where to print.
    """

    priority = training.PRIORITY_READER

    def __init__(
        self,
        comm: Communicator | None = None,
        *,
        trigger: Any = (1, "epoch"),
        iterator: str = "main",
        out: Any = None,
    ) -> None:
        self.trigger = trigger
        self._comm = comm
        self._name = iterator
        self._out = sys.stdout if out is None else out
        self._before: Stats | None = None

    def __call__(self, trainer: training.Trainer) -> None:
        """Print the paragraph of the interval that ends."""
        iterator = trainer.updater.get_iterator(self._name)
        now, before = iterator.stats(), self._before
        text = iterator.explain(before).text
        waited = (now.since(before) if before else now).wait_share
        self._before = now
        rank = getattr(self._comm, "rank", 0)
        text = text if self._comm is None else f"Rank {rank}: {text}"
        told = gathered(self._comm, (waited, rank, text))
        if told is not None:
            print(max(told)[2], file=self._out, flush=True)


class ProgressBar(extensions.ProgressBar):
    """Chainer's progress bar, with a line that says how long the trainer waited for data.

    It takes the same arguments. The line is there if the iterator is an ``OverlapIterator``.

    Args:
        iterator: The name that the updater has for the iterator.
    """

    def __init__(self, *args: Any, iterator: str = "main", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name = iterator
        self._before: Stats | None = None
        self._plain_lines = self._pbar.get_lines
        self._pbar.get_lines = self._lines

    def _lines(self) -> list[str]:
        lines: list[str] = self._plain_lines()
        now = stats_of(self._pbar.trainer.updater.get_iterator(self._name))
        if now is not None:
            span = now.since(self._before) if self._before else now
            self._before = now
            lines.append(
                f"{span.examples_per_second:10.5g} examples/sec. "
                f"Waited for data: {span.wait_share:.1%}.\n"
            )
        return lines
