"""Networks for the ImageNet example: a tiny one, one like AlexNet, and ResNet-50.

Each class maps images of shape ``(batch_size, 3, insize, insize)``, float32, to scores of shape
``(batch_size, n_classes)``. ``insize`` is the side of the square that the training script cuts
out of every image.
"""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

N_CLASSES = 1000


class Tiny(chainer.Chain):
    """Two strided convolutions and a linear layer: trains on a CPU within seconds."""

    insize = 64

    def __init__(self, n_classes: int = N_CLASSES) -> None:
        """Draw the initial weights from NumPy's global generator."""
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 8, ksize=5, stride=4)
            self.conv2 = L.Convolution2D(8, 16, ksize=3, stride=2)
            self.fc = L.Linear(16, n_classes)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the scores of the images ``x``."""
        h = F.relu(self.conv1(x))
        h = F.relu(self.conv2(h))
        return self.fc(F.mean(h, axis=(2, 3)))


class Alex(chainer.Chain):
    """Five convolutions and three linear layers, in the manner of AlexNet.

    Batch normalization stands in for local response normalization, as it trains with fewer
    adjustments.

    Source:
        Krizhevsky, Sutskever, Hinton, *ImageNet classification with deep convolutional neural
        networks*, NIPS 2012: layer sizes of figure 2, without the split over two GPUs.
    """

    insize = 227

    def __init__(self, n_classes: int = N_CLASSES) -> None:
        """Draw the initial weights from NumPy's global generator."""
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 96, ksize=11, stride=4, nobias=True)
            self.bn1 = L.BatchNormalization(96)
            self.conv2 = L.Convolution2D(96, 256, ksize=5, pad=2, nobias=True)
            self.bn2 = L.BatchNormalization(256)
            self.conv3 = L.Convolution2D(256, 384, ksize=3, pad=1)
            self.conv4 = L.Convolution2D(384, 384, ksize=3, pad=1)
            self.conv5 = L.Convolution2D(384, 256, ksize=3, pad=1)
            self.fc6 = L.Linear(256 * 6 * 6, 4096)
            self.fc7 = L.Linear(4096, 4096)
            self.fc8 = L.Linear(4096, n_classes)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the scores of the images ``x``."""
        h = _halve(F.relu(self.bn1(self.conv1(x))))
        h = _halve(F.relu(self.bn2(self.conv2(h))))
        h = F.relu(self.conv3(h))
        h = F.relu(self.conv4(h))
        h = _halve(F.relu(self.conv5(h)))
        h = F.dropout(F.relu(self.fc6(h)))
        h = F.dropout(F.relu(self.fc7(h)))
        return self.fc8(h)


class ResNet50(chainer.Chain):
    """Chainer's own ResNet-50, untrained; it always has 1,000 classes."""

    insize = 224

    def __init__(self) -> None:
        """Draw the initial weights from NumPy's global generator; read no file."""
        super().__init__()
        with self.init_scope():
            self.base = L.ResNet50Layers(pretrained_model=None)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Return the scores of the images ``x``: the last layer before the softmax."""
        return self.base(x, layers=["fc6"])["fc6"]


def _halve(x: chainer.Variable) -> chainer.Variable:
    """Overlapping max pooling, which halves height and width."""
    return F.max_pooling_2d(x, ksize=3, stride=2, cover_all=False)


ARCHITECTURES = {"tiny": Tiny, "alex": Alex, "resnet50": ResNet50}
