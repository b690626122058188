"""A small classifier of the digits of scikit-learn, with BatchNormalization and dropout."""

import chainer
import chainer.functions as F
import chainer.links as L


class Digits(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(None, 32)
            self.norm = L.BatchNormalization(32)
            self.second = L.Linear(32, 10)

    def __call__(self, pixels):
        return self.second(F.dropout(F.relu(self.norm(self.first(pixels))), 0.1))


def build_model():
    return Digits()
