"""A classifier of digits, whose process ends, or stops, amid the first trial of a group.

``SEARCH_KILLED`` is the rank that is killed, once, when it trains or validates for the second time,
or gets the signal ``SEARCH_SIGNAL``. That may also be ``leaves``: it leaves Python, and the other
one goes on for longer than it waits; ``slow``: a model takes 3 s.
``SEARCH_MARK`` a file by which it knows that it has been. Both groups have a trial then: it waits
for a rank of the other one, and that for it.
"""

import os
import pathlib
import signal
import sys
import time

import chainer
import chainer.links as L

from tests.mpi.waiting import wait_until

KILLED, RANK = os.environ.get("SEARCH_KILLED", ""), os.environ.get("OMPI_COMM_WORLD_RANK")
DEED = os.environ.get("SEARCH_SIGNAL", "SIGKILL")
MARK = pathlib.Path(os.environ.get("SEARCH_MARK", "mark"))
READY, WAITED = MARK.with_suffix(".ready"), MARK.with_suffix(".waited")


class Digits(chainer.Chain):
    def __init__(self, n_hidden):
        super().__init__()
        self.n_calls = 0
        with self.init_scope():
            self.hidden = L.Linear(64, n_hidden)
            self.out = L.Linear(n_hidden, 10)

    def forward(self, pixels):
        self.n_calls += 1
        is_killed = KILLED and RANK == KILLED
        if is_killed and self.n_calls > 1 and not MARK.exists():
            wait_until(READY.exists)
            MARK.touch()
            if DEED == "leaves":
                sys.exit(1)
            os.kill(os.getpid(), getattr(signal, DEED))
        if KILLED and RANK in ("0", "1") and RANK != KILLED:
            READY.touch()
            wait_until(MARK.exists)
            if DEED == "leaves" and not WAITED.exists():
                WAITED.touch()
                time.sleep(8)
        return self.out(chainer.functions.relu(self.hidden(pixels)))


def build_model(n_hidden=16):
    if DEED == "slow":
        time.sleep(3)
    return Digits(n_hidden)
