"""Everything that needs Chainer, and nothing else; without Chainer it says what to do."""

from __future__ import annotations

import importlib
import os
import sys

from overlapiter.errors import NoChainerError
from overlapiter.workers.start.no_mpi import WORLD_VARIABLE

_REMEDY = (
    "install it with `python -m pip install 'numpy<2' 'setuptools<74'` and then "
    "`python -m pip install --no-build-isolation chainer==7.8.1`"
)
if sys.version_info >= (3, 12):
    _REMEDY = (
        f"Chainer 7.8.1 needs Python 3.10 or 3.11, and this is Python 3.{sys.version_info.minor}: "
        f"make an environment with Python 3.11"
    )

if WORLD_VARIABLE not in os.environ:  # else a worker process, whose trainer has imported it
    try:
        importlib.import_module("chainer")
    except Exception as error:  # NumPy or setuptools may be too new for it
        raise NoChainerError(f"its import fails ({error!r})", _REMEDY) from error
