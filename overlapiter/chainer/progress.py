"""How far an iterator has come, in the words of Chainer's iterator protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

import chainer

from overlapiter.order import IterationState, RunAhead, Step, epoch_size


class Progress(NamedTuple):
    """How far an iterator has come; replaced as a whole, so an interruption leaves no mixture."""

    state: IterationState  # after the mini-batch that was taken last
    previous_epoch_detail: float  # before that mini-batch; -1 for none
    ahead: RunAhead  # generates the following steps
    #: The step that led here; None at the start. An interruption may have left it in ``ahead``.
    step: Step | None = None
    #: Whether all examples of that mini-batch were left out, so that ``next()`` goes on.
    is_passed_over: bool = False

    def drop_taken(self) -> None:
        """Remove the step that led here from ``ahead``, if it is still there."""
        if self.ahead.steps and self.ahead.steps[0] is self.step:
            self.ahead.take()


class ProgressAttributes(chainer.dataset.Iterator):
    """The attributes of Chainer's iterators; they describe the mini-batch that was taken last."""

    dataset: Any
    _progress: Progress

    @property
    def _state(self) -> IterationState:  # ChainerMN reads its order
        return self._progress.state

    @property
    def current_position(self) -> int:
        """Examples taken in the current epoch."""
        return self._state.current_position

    @property
    def epoch(self) -> int:
        """Completed sweeps over the dataset."""
        return self._state.epoch

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last mini-batch completed a sweep."""
        return self._state.is_new_epoch

    @property
    def epoch_detail(self) -> float:
        """Sweeps over the dataset, with the fraction of the current one."""
        return self.epoch + self.current_position / max(self._epoch_size, 1)

    @property
    def previous_epoch_detail(self) -> float | None:
        """The ``epoch_detail`` before the last mini-batch; None before the first one."""
        previous = self._progress.previous_epoch_detail
        return None if previous < 0 else previous

    @property
    def _epoch_size(self) -> int:
        return epoch_size(self._state, len(self.dataset))
