"""Where an iterator stands, in the words of Chainer's iterator protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

import chainer

from overlapiter.order import IterationState, RunAhead, Step, epoch_size


class Now(NamedTuple):
    """Where an iterator stands; replaced as a whole, so an interruption finds nothing half-set.

    Attributes:
        state: After the mini-batch that was taken last.
        previous_epoch_detail: Before that mini-batch; -1 for none.
        ahead: What comes next.
        step: What led here; it may still be the first of ``ahead``. None at the start.
        is_passing: Whether nothing was left of that mini-batch, so that it was not returned.
    """

    state: IterationState
    previous_epoch_detail: float
    ahead: RunAhead
    step: Step | None = None
    is_passing: bool = False

    def drop_taken(self) -> None:
        """See to it that ``ahead`` begins with what is not taken yet."""
        if self.ahead.steps and self.ahead.steps[0] is self.step:
            self.ahead.take()


class Standing(chainer.dataset.Iterator):
    """The readable half of an iterator: all of it describes the mini-batch that was taken last."""

    dataset: Any
    _now: Now

    @property
    def _state(self) -> IterationState:  # ChainerMN looks at its order
        return self._now.state

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
        previous = self._now.previous_epoch_detail
        return None if previous < 0 else previous

    @property
    def _epoch_size(self) -> int:
        return epoch_size(self._state, len(self.dataset))
