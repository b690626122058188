"""A Chainer link as the one flat vector of parameters that master/worker training works on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import chainer
import chainer.functions as F  # Chainer's own way to write it
import numpy as np

from overlapiter.objective import Objective, Vector, can_travel


class ChainerModel:
    """A link; see :class:`overlapiter.mpi.training.model.Model` for what the methods do.

    Args:
        link: Maps features to outputs, or features and labels to the loss.
        objective: What it is trained for; the device as :func:`chainer.get_device` takes it.
    """

    def __init__(self, link: Any, objective: Objective) -> None:
        self._link = link
        self._objective = objective
        self.measure_names = objective.measure_names
        device = objective.device
        self._device = chainer.get_device("@numpy" if device == "cpu" else device)
        link.to_device(self._device)  # before parameters get their shapes from the first example
        if any(param.array is None for param in link.params()):
            with chainer.using_config("train", False), chainer.no_backprop_mode():
                self._measures(objective.example)
        named = sorted(link.namedparams())
        self._params = {name: each for name, each in named if each.array is not None}
        self._persistent = _persistent(link)
        values = [(name, getattr(of, key)) for name, of, key in self._persistent]
        self.n_state = sum(np.size(value) for _, value in values)
        both = *self._params.items(), *values
        self.layout = json.dumps([[name, list(np.shape(each))] for name, each in both])
        # All parameters become views of one array, so that loading weights is one copy.
        self._ends = np.cumsum([param.size for param in self._params.values()]).tolist()
        self._flat = self._device.xp.empty(sum(self._ends[-1:]), np.float32)
        views = self._device.xp.split(self._flat, self._ends)[:-1]  # nothing is behind the last end
        for param, view in zip(self._params.values(), views, strict=True):
            view[...] = param.array.ravel()
            param.array = view.reshape(param.shape)

    def weights(self) -> Vector:
        """Return a copy of parameters and persistent values."""
        vector = np.empty(self._flat.size + self.n_state, np.float32)
        vector[: self._flat.size] = _on_host(self._flat)
        self._write_state(vector)
        return vector

    def load(self, weights: Vector) -> None:
        """Copy values into parameters and persistent values."""
        if self._device.xp is np:
            np.copyto(self._flat, weights[: self._flat.size])
        else:
            self._flat.set(weights[: self._flat.size])
        begin = self._flat.size
        for _, of, key in self._persistent:
            value = getattr(of, key)
            part = weights[begin : begin + np.size(value)]
            begin += part.size
            if np.ndim(value):
                value[...] = self._device.xp.asarray(part.reshape(value.shape), value.dtype)
            else:
                setattr(of, key, type(value)(part[0]))

    def _write_state(self, vector: Vector) -> None:
        values = [np.ravel(_on_host(getattr(of, key))) for _, of, key in self._persistent]
        if values:
            np.concatenate(values, out=vector[self._flat.size :], casting="unsafe")

    def gradient(self, batch: tuple[Any, ...], gradient: Vector, seed: int) -> Sequence[float]:
        """Compute the gradient of the mean loss, and the measures, of a mini-batch."""
        np.random.seed(seed & 0xFFFFFFFF)  # Chainer's dropout uses it
        self._link.cleargrads()
        with chainer.using_config("train", True):
            loss, measures = self._measures(batch)
            loss.backward()
        parts = np.split(gradient, self._ends)[:-1]
        for param, part in zip(self._params.values(), parts, strict=True):
            # One without a gradient has no part in the loss.
            part[:] = 0 if param.grad is None else _on_host(param.grad).ravel()
        self._write_state(gradient)
        return [float(each) for each in measures]

    def evaluate(self, batch: tuple[Any, ...]) -> Sequence[float]:
        """Return the measures of a mini-batch."""
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return [float(each) for each in self._measures(batch)[1]]

    def _measures(self, batch: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        *features, labels = (self._device.send(each) for each in batch)
        if self._objective.loss == "model":
            reporter = chainer.Reporter()
            observed: dict[str, Any] = {}
            reporter.add_observer("main", self._link)
            with reporter.scope(observed):
                loss = self._link(*features, labels)
            for name in self._objective.metrics:
                if f"main/{name}" not in observed:
                    raise self._objective.missing(
                        name, f"chainer.report {{{name!r}: ...}} of itself"
                    )
            found = (observed[f"main/{name}"] for name in self._objective.metrics)
            return loss, [loss.array, *(getattr(each, "array", each) for each in found)]
        outputs = self._link(*features)
        if self._objective.loss == "mean_squared_error":
            labels = labels.astype(outputs.dtype, copy=False).reshape(outputs.shape)
        elif self._objective.loss == "sigmoid_cross_entropy":
            labels = labels.reshape(outputs.shape)
        loss = getattr(F, self._objective.loss)(outputs, labels)  # it is called as in Chainer
        accuracies = [self._accuracy(outputs, labels) for _ in self._objective.metrics]
        return loss, [loss.array, *accuracies]

    def _accuracy(self, outputs: Any, labels: Any) -> Any:
        if self._objective.loss == "sigmoid_cross_entropy":
            return F.binary_accuracy(outputs, labels).array
        return F.accuracy(outputs, labels).array

    def names_of_bad(self) -> list[str]:
        """Return the names of the parameters that are not finite."""
        finite = self._device.xp.isfinite
        return [name for name, each in self._params.items() if not finite(each.array).all()]

    def save(self, path: str) -> None:
        """Write the link for :func:`chainer.serializers.load_npz`."""
        chainer.serializers.save_npz(path, self._link)


def _on_host(array: Any) -> Any:
    return chainer.get_device("@numpy").send(array) if hasattr(array, "device") else array


def _persistent(link: Any) -> list[tuple[str, Any, str]]:
    """Return name, owner and attribute of the persistent values of all links that can travel."""
    return [
        (f"{name}/{key}", each, key)
        for name, each in sorted(link.namedlinks())
        for key in sorted(each._persistent)
        if can_travel(np.asarray(_on_host(getattr(each, key))))
    ]
