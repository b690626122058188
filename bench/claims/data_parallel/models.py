"""Networks that take more or less time than their data.

Each maps images of shape ``(batch_size, 3, height, width)``, float32, at least 224 pixels high and
wide, to scores of shape ``(batch_size, 1000)``.
"""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

N_CLASSES = 1000


class Data(chainer.Chain):
    """A linear layer over every 32nd pixel: next to no time, so that the data are what counts."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.linear = L.Linear(None, N_CLASSES)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the scores."""
        return self.linear(x[:, :, ::32, ::32] / 255)


class Compute(chainer.Chain):
    """Convolutions of a size that keeps a core busy for long, with few parameters to exchange."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(3, 64, ksize=7, stride=4, pad=3)
            blocks = [L.Convolution2D(64, 64, ksize=3, pad=1) for _ in range(6)]
            self.blocks = chainer.ChainList(*blocks)
            self.linear = L.Linear(64, N_CLASSES)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the scores."""
        h = F.relu(self.first(x / 255))
        for block in self.blocks:
            h = F.relu(block(h)) + h
        return self.linear(F.mean(h, axis=(2, 3)))


class ResNet50(chainer.Chain):
    """Chainer's own ResNet-50, untrained, over the 224 x 224 pixels in the corner."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.base = L.ResNet50Layers(pretrained_model=None)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the scores: the last layer before the softmax."""
        return self.base(x[:, :, :224, :224] / 255, layers=["fc6"])["fc6"]


MODELS = {"data": Data, "compute": Compute, "resnet50": ResNet50}
