"""A recurrent network that reads the particles of a jet one after the other."""

import chainer
import chainer.functions as F
import chainer.links as L


class Jets(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.gru = L.StatefulGRU(3, 32)
            self.out = L.Linear(32, 2)

    def forward(self, particles):
        self.gru.reset_state()
        for place in range(particles.shape[1]):
            h = self.gru(10 * particles[:, place])
        return self.out(F.relu(h))


def build_model():
    return Jets()
