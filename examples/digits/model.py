"""A small convolutional network, as for MNIST."""

import chainer
import chainer.functions as F
import chainer.links as L


class Digits(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 16, 3, pad=1, nobias=True)
            self.norm1 = L.BatchNormalization(16)
            self.conv2 = L.Convolution2D(16, 32, 3, pad=1)
            self.hidden = L.Linear(32 * 4 * 4, 64)
            self.out = L.Linear(64, 10)

    def forward(self, x):
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.max_pooling_2d(F.relu(self.conv2(h)), 2)
        return self.out(F.relu(self.hidden(h)))


def build_model():
    return Digits()
