"""Has the forkserver remove its socket in TMPDIR when it ends, if its trainer was killed.

The forkserver imports this first: a trainer may die while the rest is being imported. Import this
module nowhere else.
"""

import atexit
import contextlib
import os
from multiprocessing import forkserver
from typing import Any


def _remove_socket(own_pid: int, trainer_pid: int) -> None:
    # Else the trainer does so, or has other uses for the folder; what was forked does not.
    if os.getpid() == own_pid and os.getppid() != trainer_pid:
        server: Any = forkserver._forkserver
        address = server._forkserver_address
        with contextlib.suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))


atexit.register(_remove_socket, os.getpid(), os.getppid())
