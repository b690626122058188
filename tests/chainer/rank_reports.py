"""Runs under mpiexec: reports from trainings in which each rank waits for another time."""

from typing import Any

import chainer
import chainermn
from chainermn.iterators import create_multi_node_iterator

from overlapiter import LoadingReport
from tests.chainer.rank_side import report
from tests.chainer.reported_training import Clock, Iterator, log_of, trainer_of, with_log

EVERY_TWO = (2, "iteration")


class Counted:
    """A communicator that lists what is called."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.comm, name)


def main() -> None:
    comm = chainermn.create_communicator("naive")
    clock, counted = Clock(setattr), Counted(comm)
    trainer = trainer_of(
        clock,
        6,
        LoadingReport(counted, trigger=EVERY_TWO),
        iterator=Iterator(clock, comm.rank + 1),
        optimizer=chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(), comm),
    )
    with_log(trainer, EVERY_TWO).run()
    results = {"log": log_of(trainer), "collectives": counted.calls}

    # Only the master has an iterator that waits; the others get its mini-batches.
    iterator = create_multi_node_iterator(Iterator(clock, 0), comm)
    trainer = trainer_of(clock, 2, LoadingReport(comm, trigger=EVERY_TWO), iterator=iterator)
    with_log(trainer, EVERY_TWO).run()
    rates = [
        {key: entry[key] for key in entry if key == "examples_per_second"}
        for entry in log_of(trainer)
    ]
    report(comm, {**results, "multi-node log": rates})


if __name__ == "__main__":
    main()
