"""The last module that the forkserver imports: from here on Ctrl-C may reach it.

The trainer starts it with SIGINT blocked, since a Ctrl-C while it imports would show a traceback of
its own. What came meanwhile is dropped; a moment later the forkserver ignores SIGINT for itself and
restores the usual handler in each process that it forks. Import this module nowhere else.

What has been imported stays, so the garbage collector is kept off it here: each supervisor would
look through all of it before it forks its workers, which is half of what a start costs.

A trainer that was killed leaves the socket of its forkserver in TMPDIR: that ends then, and removes
it.
"""

import atexit
import contextlib
import gc
import os
import signal
from multiprocessing import forkserver
from typing import Any


def _remove_socket(own_pid: int, trainer_pid: int) -> None:
    """Remove the socket by which this process was asked, and its folder, if the trainer is dead."""
    # Else the trainer does so, or has other uses for the folder; what was forked does not.
    if os.getpid() == own_pid and os.getppid() != trainer_pid:
        server: Any = forkserver._forkserver
        address = server._forkserver_address
        with contextlib.suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))


atexit.register(_remove_socket, os.getpid(), os.getppid())

gc.freeze()
gc.enable()
_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
signal.signal(signal.SIGINT, _handler)
