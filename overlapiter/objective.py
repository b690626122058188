"""What a model is trained for, and what of it travels: the same for the adapters of frameworks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.errors import TrainingError

#: A model: its parameters, then its persistent state.
Vector = NDArray[np.float32]
#: No model, where one may be.
EMPTY: Vector = np.empty(0, np.float32)
EMPTY.flags.writeable = False


class Objective(NamedTuple):
    """What is minimised and measured, and where."""

    loss: str  # its name; ``model``: the model takes features and labels and returns it
    metrics: tuple[str, ...]  # names of what else is measured: ``accuracy``
    device: str  # where the model computes, as its framework names it; ``cpu`` for all of them
    example: tuple[Any, ...]  # features and labels, to make parameters that wait for a shape

    @property
    def measure_names(self) -> tuple[str, ...]:
        """The loss, then the metrics."""
        return ("loss", *self.metrics)

    def missing(self, name: str, how: str) -> TrainingError:
        """Return what is raised if a model that returns its loss does not measure the rest."""
        return TrainingError(f"with --loss model --metrics {name} the model has to {how}")


def can_travel(value: NDArray[Any]) -> bool:
    """Return whether a state can be averaged in single precision; a mask of -inf cannot.

    One that cannot stays as it is on each rank.
    """
    if value.dtype.kind not in "biuf":
        return False
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit differs then
        single = value.astype(np.float32)
        is_same = value.dtype.kind == "f" or np.array_equal(single.astype(value.dtype), value)
    return is_same and bool(np.isfinite(single).all())
