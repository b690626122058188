"""A model that counts: after training by plain SGD, each parameter is minus how often its example
was used; and that can die, hang or say nonsense on the way. It has no framework, so it starts fast.

``TRAINING_FAULT`` is ``kill``, ``stop``, ``interrupt``, ``nan``, ``exit``, ``other`` (another
model), ``killed-validating``, ``stopped-validating``, ``hung-validating``, ``stopped-leaving`` or
``stopped-finalizing``; then the rank and the mini-batch at which it happens; the other ranks do not
end their first mini-batch before.
``TRAINING_WAIT_SECONDS`` is how
long a mini-batch takes; ``TRAINING_LOG`` a folder where each rank writes down the examples that it
used, and does not end its first mini-batch before ``TRAINING_MEET`` ranks have begun theirs.
"""

import atexit
import math
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

from tests.mpi.waiting import wait_until

RANK = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
FAULT, WHERE, WHEN = os.environ.get("TRAINING_FAULT", "none:x:0").split(":")
WAIT_SECONDS = float(os.environ.get("TRAINING_WAIT_SECONDS", "0"))
LOG, MEET = os.environ.get("TRAINING_LOG", ""), int(os.environ.get("TRAINING_MEET", "0"))
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGTERM}
HAPPENED = pathlib.Path("fault-happened")


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


if RANK == WHERE and FAULT == "stopped-leaving":
    atexit.register(stop)
if RANK == WHERE and FAULT == "stopped-finalizing":
    from mpi4py import MPI

    MPI.Finalize = stop


class Counting:
    measure_names = ("loss",)
    n_state = 0

    def __init__(self, n_examples):
        self.n_calls = 0
        self.used = np.zeros(n_examples, np.float32)
        self.layout = f"{n_examples} numbers"

    def weights(self):
        return self.used.copy()

    def load(self, weights):
        self.used[:] = weights

    def gradient(self, batch, gradient, _seed):
        numbers, _ = batch
        self.n_calls += 1
        if LOG:
            with open(f"{LOG}/{RANK}", "a") as log:
                log.write(" ".join(map(str, numbers.tolist())) + "\n")
            wait_until(lambda: len(os.listdir(LOG)) >= MEET)
        time.sleep(WAIT_SECONDS)
        if RANK != WHERE and int(WHEN):
            wait_until(HAPPENED.exists)
        elif self.n_calls == int(WHEN):
            HAPPENED.touch()
            if FAULT == "nan":
                return [math.nan]
            if FAULT == "exit":
                sys.exit(0)
            os.kill(os.getpid(), SIGNALS[FAULT])
        gradient[:] = 0
        np.add.at(gradient, numbers, 1)
        return [0.0]

    def evaluate(self, _batch):
        if RANK == WHERE and FAULT == "hung-validating":
            threading.Event().wait()
        if RANK == WHERE and FAULT.endswith("-validating"):
            os.kill(os.getpid(), signal.SIGKILL if "killed" in FAULT else signal.SIGSTOP)
        return [0.0]

    def names_of_bad(self):
        return []

    def save(self, path):
        np.savez(path, used=self.used)


def build_model():
    return Counting(6 if FAULT == "other" and RANK == WHERE else 100)
