"""Runs under mpiexec: a group of three ranks, two of which are stopped one after the other.

Rank 2 answers no call; rank 1 answers once, and is stopped while rank 2 is waited for.
"""

import json
import os
import pathlib
import signal

from mpi4py import MPI

from overlapiter.mpi.searching import groups

groups._LEAST_SECONDS = 2.0

if __name__ == "__main__":
    group = groups.Group(MPI.COMM_WORLD, 3, 0, print)
    if group.is_leader:
        left = group.leave_behind()
        pathlib.Path("left.json").write_text(json.dumps([sorted(left), group.comm.size]))
        MPI.COMM_WORLD.Abort(0)
    elif MPI.COMM_WORLD.rank == 1:
        answer = group._tell

        def answer_once(*what: object) -> None:
            answer(*what)
            os.kill(os.getpid(), signal.SIGSTOP)

        group._tell = answer_once
        assert not [*group.orders()]
    else:
        os.kill(os.getpid(), signal.SIGSTOP)
