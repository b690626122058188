"""A model that counts: after training by plain SGD, each parameter is minus how often its example
was used; and that can die, hang or say nonsense on the way.

``TRAINING_FAULT`` is ``kill``, ``stop``, ``nan``, ``other`` (another model) or ``evaluate`` (killed
then), the rank and the mini-batch at which it happens;
``TRAINING_WAIT_SECONDS`` is how long a mini-batch takes; ``TRAINING_LOG`` a folder where each rank
writes down the examples of its mini-batches.
"""

import os
import signal
import time

import chainer
import chainer.functions as F
import chainer.links as L

N_EXAMPLES = int(os.environ.get("TRAINING_EXAMPLES", "100"))
RANK = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
FAULT, WHERE, WHEN = os.environ.get("TRAINING_FAULT", "none:x:0").split(":")
WAIT_SECONDS = float(os.environ.get("TRAINING_WAIT_SECONDS", "0"))
LOG = os.environ.get("TRAINING_LOG", "")


class Counting(chainer.Chain):
    def __init__(self):
        super().__init__()
        self.n_calls = 0
        with self.init_scope():
            self.used = L.EmbedID(N_EXAMPLES, 1, initialW=0)

    def __call__(self, numbers, _labels):
        loss = F.sum(self.used(numbers))
        if not chainer.config.train:
            if FAULT == "evaluate" and RANK == WHERE:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss
        self.n_calls += 1
        if LOG:
            with open(f"{LOG}/{RANK}", "a") as log:
                log.write(" ".join(map(str, numbers.tolist())) + "\n")
        time.sleep(WAIT_SECONDS)
        if RANK == WHERE and self.n_calls == int(WHEN):
            if FAULT == "nan":
                return loss * float("nan")
            os.kill(os.getpid(), signal.SIGKILL if FAULT == "kill" else signal.SIGSTOP)
        return loss


def build_model():
    if FAULT == "other" and RANK == WHERE:
        return chainer.Sequential(L.Linear(1, 3))
    return Counting()
