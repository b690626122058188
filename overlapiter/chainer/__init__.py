"""Everything that needs Chainer, and nothing else; without Chainer it says what to do."""

from __future__ import annotations

import os
import sys
from importlib import util

import numpy as np

from overlapiter.errors import NoChainerError
from overlapiter.workers.start.no_mpi import WORLD_VARIABLE

_RECIPE = (
    "install it with `python -m pip install 'numpy<2' 'setuptools<74'` and then "
    "`python -m pip install --no-build-isolation chainer==7.8.1`"
)


def _check() -> None:
    """Raise NoChainerError with a remedy where the import of Chainer would fail.

    Nothing is imported for it: ``preload`` has preparations to make before Chainer is.
    """
    if util.find_spec("chainer") is None:
        if sys.version_info >= (3, 12):
            here = "{}.{}".format(*sys.version_info)
            obstacle = f"Chainer 7.8.1 needs Python 3.10 or 3.11, but this is Python {here}"
            raise NoChainerError(obstacle, "make an environment with Python 3.11")
        raise NoChainerError("it is not installed", _RECIPE)
    from importlib import metadata  # and with it 40 other modules

    try:
        setuptools = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        raise NoChainerError("Chainer needs setuptools, which is not installed", _RECIPE) from None
    for name, version, limit in (("NumPy", np.__version__, 2), ("setuptools", setuptools, 74)):
        if int(version.partition(".")[0]) >= limit:
            obstacle = f"Chainer 7.8.1 needs {name} below {limit}, but this is {name} {version}"
            raise NoChainerError(obstacle, _RECIPE)


if WORLD_VARIABLE not in os.environ:  # not in a worker process: its trainer has looked
    _check()
