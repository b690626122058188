"""A PyTorch module as the one flat vector that master/worker training works on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # PyTorch's own way to write it
from numpy.typing import NDArray

from overlapiter.objective import Objective, Vector, can_travel

#: Of the losses of regressions; their labels have the shape and the type of the outputs.
_LOSSES = {
    "mean_squared_error": F.mse_loss,
    "sigmoid_cross_entropy": F.binary_cross_entropy_with_logits,
}


def _loss(name: str, outputs: Any, labels: Any) -> Any:
    if name == "softmax_cross_entropy":
        return F.cross_entropy(outputs, labels.long())
    return _LOSSES[name](outputs, labels.reshape(outputs.shape).to(outputs.dtype))


def _on_host(tensor: Any) -> NDArray[Any]:
    """Return an array on the host; NumPy does not have all of PyTorch's short types of numbers."""
    is_short = tensor.is_floating_point() and tensor.element_size() < 4
    values: NDArray[Any] = (tensor.float() if is_short else tensor).detach().cpu().numpy()
    return values


class TorchModel:
    """A module; see :class:`overlapiter.mpi.training.model.Model` for what the methods do.

    Args:
        module: Maps features to outputs; or features and labels to the loss, or to a tuple of the
            loss and the metrics.
        objective: What it is trained for.
    """

    def __init__(self, module: Any, objective: Objective) -> None:
        self._objective = objective
        self.measure_names = objective.measure_names
        self._device = torch.device(objective.device)
        self._module = module.to(self._device)
        self._module.eval()
        with torch.no_grad():
            self._measures(objective.example)
        self._parameters = dict(self._module.named_parameters())
        buffers = self._module.named_buffers()
        self._buffers = {name: each for name, each in buffers if can_travel(_on_host(each))}
        self._parts = [*self._parameters.values(), *self._buffers.values()]
        self.n_state = sum(each.numel() for each in self._buffers.values())
        self._ends = np.cumsum([each.numel() for each in self._parts]).tolist()
        named = {**self._parameters, **self._buffers}
        self.layout = json.dumps([[name, list(each.shape)] for name, each in named.items()])

    def _split(self, vector: Vector) -> list[Vector]:
        """Return views of the values of each part."""
        return np.split(vector, self._ends)[:-1]  # nothing is behind the last end

    def _fill(self, vector: Vector, tensors: Sequence[Any]) -> None:
        """Write tensors of the shapes of all parts into a vector; None stands for zeros."""
        for values, tensor in zip(self._split(vector), tensors, strict=True):
            values[:] = 0 if tensor is None else _on_host(tensor).ravel()

    def weights(self) -> Vector:
        """Return a copy of parameters and buffers."""
        vector = np.empty(sum(self._ends[-1:]), np.float32)
        self._fill(vector, self._parts)
        return vector

    def load(self, weights: Vector) -> None:
        """Copy values into parameters and buffers."""
        with torch.no_grad():
            for part, values in zip(self._parts, self._split(weights), strict=True):
                part.copy_(torch.from_numpy(values.copy()).reshape(part.shape))

    def gradient(self, batch: tuple[Any, ...], gradient: Vector, seed: int) -> Sequence[float]:
        """Compute the gradient of the mean loss, and the measures, of a mini-batch."""
        torch.manual_seed(seed)
        self._module.train()
        self._module.zero_grad(set_to_none=True)
        loss, measures = self._measures(batch)
        loss.backward()
        gradients = [each.grad for each in self._parameters.values()]
        self._fill(gradient, [*gradients, *self._buffers.values()])
        return measures

    def evaluate(self, batch: tuple[Any, ...]) -> Sequence[float]:
        """Return the measures of a mini-batch."""
        self._module.eval()
        with torch.no_grad():
            return self._measures(batch)[1]

    def _measures(self, batch: tuple[Any, ...]) -> tuple[Any, list[float]]:
        *features, labels = (torch.from_numpy(each).to(self._device) for each in batch)
        objective = self._objective
        if objective.loss == "model":
            said = self._module(*features, labels)
            loss, *metrics = said if isinstance(said, tuple) else (said,)
            if len(metrics) < len(objective.metrics):
                raise objective.missing(objective.metrics[0], "return (loss, accuracy)")
            wanted = metrics[: len(objective.metrics)]
            return loss, [float(loss.detach()), *(float(each) for each in wanted)]
        outputs = self._module(*features)
        loss = _loss(objective.loss, outputs, labels)
        accuracies = [self._accuracy(outputs, labels) for _ in objective.metrics]
        return loss, [float(loss.detach()), *accuracies]

    def _accuracy(self, outputs: Any, labels: Any) -> float:
        if self._objective.loss == "sigmoid_cross_entropy":
            said = (outputs > 0).reshape(-1)
        else:
            said = outputs.argmax(1)
        return float((said == labels.reshape(-1)).float().mean())

    def names_of_bad(self) -> list[str]:
        """Return the names of the parameters that are not finite."""
        return [n for n, each in self._parameters.items() if not bool(each.isfinite().all())]

    def save(self, path: str) -> None:
        """Write the arrays of the state dictionary by name, for ``numpy.load``."""
        arrays = {name: _on_host(part) for name, part in self._module.state_dict().items()}
        np.savez(path, **arrays)
