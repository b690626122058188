"""``overlapiter`` with short limits, on a rank that may stop as it starts: ``STOPPED_RANK``."""

import os
import signal
import sys

if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI  # it starts MPI, which no rank can do without the others

from overlapiter.__main__ import main
from overlapiter.mpi.training import ending, hosting, silence

silence._LEAST_SECONDS = 3.0
ending._LEAVE_SECONDS = 4.0
hosting._JOIN_SECONDS = 0.5

if __name__ == "__main__":
    if "STOPPED_RANK" in os.environ:  # else a busy machine has time to start
        ending._START_SECONDS = 8.0
        if os.environ["STOPPED_RANK"] == str(MPI.COMM_WORLD.rank):
            os.kill(os.getpid(), signal.SIGSTOP)
    sys.exit(main())
