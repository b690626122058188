"""The first module that the forkserver imports. Import it in child processes only.

What is imported after it finds no MPI library. Nor does the garbage collector run until the last
module, which keeps it off what was imported: there is hardly any garbage, and looking for it takes
as long as a tenth of the imports.

The forkserver removes its socket in TMPDIR when it ends, if its trainer was killed, which may be
while the rest is being imported.
"""

import atexit
import contextlib
import gc
import os
from multiprocessing import forkserver
from typing import Any

from overlapiter.workers.start.no_mpi import install


def _remove_socket(own_pid: int, trainer_pid: int) -> None:
    # Else the trainer does so, or has other uses for the folder; what was forked does not.
    if os.getpid() == own_pid and os.getppid() != trainer_pid:
        server: Any = forkserver._forkserver
        address = server._forkserver_address
        with contextlib.suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))


atexit.register(_remove_socket, os.getpid(), os.getppid())
gc.disable()
install()
