"""Where an iterator stands, in the words of Chainer's iterator protocol."""

from __future__ import annotations

from typing import Any

import chainer

from overlapiter.order import IterationState, epoch_size


class Standing(chainer.dataset.Iterator):
    """The readable half of an iterator: all of it describes the mini-batch that was taken last."""

    dataset: Any
    _state: IterationState
    _previous_epoch_detail: float  # -1 for None, so that snapshots can hold it

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
        return None if self._previous_epoch_detail < 0 else self._previous_epoch_detail

    @property
    def _epoch_size(self) -> int:
        return epoch_size(self._state, len(self.dataset))
