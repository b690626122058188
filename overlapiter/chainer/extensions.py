"""Trainer extensions that show, while it runs, whether loading keeps up with training."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import chainer
from chainer import training
from chainer.training import extensions

from overlapiter.chainer.iterator import OverlapIterator
from overlapiter.stats import Stats


class Communicator(Protocol):
    """What the report needs of ChainerMN's communicators."""

    def gather_obj(self, obj: Any, root: int = 0) -> Sequence[Any] | None:
        """Return the objects of all ranks at the root, None elsewhere."""


def gathered(comm: Communicator | None, thing: Any) -> Sequence[Any] | None:
    """Return what each rank has given, on rank 0, or without a communicator; else None."""
    return [thing] if comm is None else comm.gather_obj(thing)


@dataclasses.dataclass
class Interval:
    """What one rank counted since the last report."""

    #: Inside updates: from the call of ``next()`` until the optimizer is done. Evaluation,
    #: snapshots and logs come between updates.
    update_seconds: float = 0.0
    wait_seconds: float = 0.0  # of those, inside ``next()``
    n_examples: int = 0  # in the mini-batches that came
    opens_staged: int = 0  # opens of source files that went to a staged copy
    opens_source: int = 0  # opens of source files that went to the slow store


def summarize(intervals: Sequence[Interval]) -> dict[str, float]:
    """Return the entries of a log for the same interval on all ranks.

    An entry that would be a quotient of zeros is left out.
    """
    timed = [each for each in intervals if each.update_seconds > 0]
    opened = [each for each in intervals if each.opens_staged + each.opens_source]
    rates = [each.n_examples / each.update_seconds for each in timed]
    entries: dict[str, float] = {}
    for name, worst, values in (
        ("wait_seconds", max, [each.wait_seconds for each in timed]),
        ("wait_share", max, [each.wait_seconds / each.update_seconds for each in timed]),
        ("staged_share", min, [e.opens_staged / (e.opens_staged + e.opens_source) for e in opened]),
        ("examples_per_second", min, rates),
    ):
        if values:
            entries[name] = sum(values) / len(values)
            entries[f"{name}/worst"] = worst(values)
    if rates:
        entries["examples_per_second/total"] = sum(rates)
    return entries


class LoadingReport(training.Extension):
    """Trainer extension that reports whether loading keeps up with training.

    Once in an interval it reports to the trainer, so that ``LogReport`` and ``PrintReport`` show:

    ============================  ==============================================================
    ``wait_seconds``              how long the trainer waited for mini-batches in this interval
    ``wait_share``                the same, as a share of the time inside updates. Near 0: data is
                                  there in time; at 0.3 the training could take 30% less
    ``staged_share``              opens of source files that went to a staged copy, as a share of
                                  all. Below 1 after the first epoch: something is not staged.
                                  Only with an :class:`overlapiter.OverlapIterator` that stages
    ``examples_per_second``       examples trained on, for each second inside updates
    ============================  ==============================================================

    Each of them is the mean over the ranks; with ``/worst`` added, that of the worst rank: the
    longest wait, the smallest share that is staged, the lowest rate. ``/total`` after
    ``examples_per_second`` is that of all ranks together. The time inside updates is without
    evaluation, snapshots and logs.

    With a communicator all ranks extend their trainers by it, and rank 0 reports: once in an
    interval each rank sends it a few numbers and does not wait. An iteration costs a few
    microseconds. It works with any iterator: while the trainer runs, it wraps the iterator's
    ``next()``, which Chainer's updaters call. An :class:`overlapiter.OverlapIterator` that does not
    know its ``epochs`` is told those of the trainer's stop trigger, if that is an interval.

    Args:
        comm: ChainerMN's communicator; None for a training in one process.
        trigger: When an interval ends; the same as that of ``LogReport``. It must fire in the same
            iteration on all ranks.
        iterator: The name that the updater has for the iterator.
    """

    trigger = 1, "iteration"
    # Higher than evaluators have: this extension is called when the update has just ended.
    priority = training.PRIORITY_WRITER + 2

    def __init__(
        self,
        comm: Communicator | None = None,
        *,
        trigger: Any = (1, "epoch"),
        iterator: str = "main",
    ) -> None:
        self._comm = comm
        self._interval_trigger = training.get_trigger(trigger)
        self._name = iterator
        self._iterator: Any = None
        self._interval = Interval()
        self._counted: Stats | None = None  # when its opens were added last
        self._began_seconds: float | None = None

    def initialize(self, trainer: training.Trainer) -> None:
        """Wrap the iterator's ``next()``, and tell the iterator when training ends."""
        iterator = self._iterator = trainer.updater.get_iterator(self._name)
        if isinstance(iterator, OverlapIterator) and iterator.epochs is None:
            iterator.epochs = _epochs_until(trainer.stop_trigger, iterator)
        self._next = self._iterator.next
        # Not by setattr: ChainerMN's iterators set attributes of the iterator that they wrap.
        vars(self._iterator)["next"] = self._timed_next
        self._counted = stats_of(self._iterator)

    def finalize(self) -> None:
        """Unwrap the iterator's ``next()``."""
        if self._iterator is not None:
            self._count_opens()
            vars(self._iterator).pop("next", None)
            self._iterator = None

    def _timed_next(self) -> Any:
        begin = time.perf_counter()
        if self._began_seconds is None:
            self._began_seconds = begin
        try:
            batch = self._next()
        finally:
            self._interval.wait_seconds += time.perf_counter() - begin
        self._interval.n_examples += len(batch)
        return batch

    def __call__(self, trainer: training.Trainer) -> None:
        """Count an update, and report if it ends an interval."""
        is_end = self._interval_trigger(trainer)
        if is_end:
            _await_kernels(trainer)
        if self._began_seconds is not None:
            self._interval.update_seconds += time.perf_counter() - self._began_seconds
            self._began_seconds = None
        if not is_end:
            return
        self._count_opens()
        interval, self._interval = self._interval, Interval()
        intervals = gathered(self._comm, interval)
        if intervals is not None:
            chainer.report(summarize(intervals))

    def _count_opens(self) -> None:
        """Add the opens since the last call, of which there is none where the counting begins."""
        before, self._counted = self._counted, stats_of(self._iterator)
        if before is not None and self._counted is not None:
            since = self._counted.since(before)
            self._interval.opens_staged += since.opens_staged
            self._interval.opens_source += since.opens_source

    def serialize(self, serializer: Any) -> None:
        """Save or load the counts of the interval that has not ended."""
        if hasattr(self._interval_trigger, "serialize"):
            self._interval_trigger.serialize(serializer["interval_trigger"])
        if self._iterator is not None:
            self._count_opens()
        counted = dataclasses.asdict(self._interval)
        try:
            counted = {name: serializer(name, value) for name, value in counted.items()}
        except KeyError:  # a snapshot of a trainer without this extension
            return
        self._interval = Interval(**counted)


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


def stats_of(iterator: Any) -> Stats | None:
    """Return the counters of an ``OverlapIterator``; None for any other iterator."""
    stats = getattr(iterator, "stats", None)
    counted = stats() if callable(stats) else None
    return counted if isinstance(counted, Stats) else None


def _epochs_until(trigger: Any, iterator: OverlapIterator) -> float | None:
    """Return after how many epochs a trigger stops a trainer; None if that is not known."""
    if not isinstance(trigger, training.triggers.IntervalTrigger):
        return None
    n_epochs: float = trigger.period
    if trigger.unit == "iteration":
        n_epochs *= iterator.batch_size / max(1, iterator._epoch_size)
    return n_epochs


def _await_kernels(trainer: training.Trainer) -> None:
    """Wait until the GPUs are done: an update only queues its kernels."""
    for optimizer in trainer.updater.get_all_optimizers().values():
        device = optimizer.target.device
        if isinstance(device, chainer.backend.GpuDevice):
            device.device.synchronize()
