"""Networks that take more or less time than their data, and what trains them on several ranks.

Each network maps images of shape ``(batch_size, 3, height, width)``, float32, at least 224 pixels
high and wide, to scores of shape ``(batch_size, 1000)``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import chainer
import chainer.links as L
import chainermn
import numpy as np

N_CLASSES = 1000
WAIT_SECONDS = 0.07


def data() -> chainer.Sequential:
    """Return next to no work, so that the data are what counts: a layer over every 32nd pixel."""
    return chainer.Sequential(lambda x: x[:, :, ::32, ::32] / 255, L.Linear(None, N_CLASSES))


def waits() -> chainer.Sequential:
    """Return the same, which begins with a wait: the cores are free, as beside an accelerator."""

    def wait(x: chainer.Variable) -> chainer.Variable:
        time.sleep(WAIT_SECONDS)
        return x

    return chainer.Sequential(wait, *data())


class _ResNet50(L.ResNet50Layers):
    def forward(self, x: chainer.Variable) -> chainer.Variable:
        return super().forward(x[:, :, :224, :224] / 255, layers=["fc6"])["fc6"]


def resnet50() -> chainer.Link:
    """Return Chainer's own ResNet-50, untrained, over the 224 x 224 pixels in the corner."""
    return _ResNet50(pretrained_model=None)


MODELS = {"data": data, "waits": waits, "resnet50": resnet50}


def training_step(name: str, seed: int, comm: Any, device: int) -> Callable[[Any, list], float]:
    """Return what trains a model on a mini-batch of a loader and returns the loss."""
    np.random.seed(seed)  # the weights are drawn from it
    model = chainer.links.Classifier(MODELS[name]())
    model.compute_accuracy = False
    if device >= 0:
        chainer.backends.cuda.get_device_from_id(device).use()
        model.to_gpu()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1e-3), comm)
    optimizer.setup(model)

    def step(loader: Any, batch: list) -> float:
        optimizer.update(model, *loader.concat(batch, device))
        return float(model.loss.array)

    return step
