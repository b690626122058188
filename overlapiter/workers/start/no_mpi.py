"""A stand-in for ``mpi4py.MPI`` in the worker processes, which loads no library.

A dataset that is defined in the training script brings that script into the workers, and with it
what stands at its top: ``from mpi4py import MPI``, ``rank = MPI.COMM_WORLD.Get_rank()``,
``import chainermn``. There the stand-in tells the rank and the size of the trainer. Everything of
MPI's can be named; what is local is called to no effect, as far as it stands at the top of
scripts; what would communicate raises :class:`~overlapiter.errors.NoMpiError`.

Extension modules that were built against mpi4py, such as h5py with MPI, cannot be imported on top
of it; where ``OVERLAPITER_MPI_IN_WORKERS`` is set there is no stand-in.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time
import types
from typing import Any

from overlapiter.errors import NoMpiError
from overlapiter.node import launched_world

#: Tells the workers ``rank/size`` of the trainer.
WORLD_VARIABLE = "OVERLAPITER_WORLD"

#: Set by a user whose datasets need the real library, which is then not initialized.
OPT_OUT_VARIABLE = "OVERLAPITER_MPI_IN_WORKERS"

_MODULE = "mpi4py.MPI"


def world_of_this_process() -> str:
    """Return ``rank/size`` of this process, or nothing where only MPI knows it.

    Without MPI and without a launcher a process is alone.
    """
    mpi: Any = sys.modules.get(_MODULE)
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return f"{mpi.COMM_WORLD.Get_rank()}/{mpi.COMM_WORLD.Get_size()}"
    return os.environ[WORLD_VARIABLE] if WORLD_VARIABLE in os.environ else launched_world()


def install() -> None:
    """Have this process import the stand-in from now on, and never the library."""
    if OPT_OUT_VARIABLE in os.environ or any(isinstance(f, _Finder) for f in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    if sys.modules.pop(_MODULE, None) is not None:  # a forkserver of the program's own has it
        vars(sys.modules["mpi4py"]).pop("MPI", None)


class _Finder:
    """Finds the stand-in where ``mpi4py.MPI`` is looked for; mpi4py itself must be there.

    No subclass of ``importlib.abc``'s, whose import takes longer than all else here.
    """

    def find_spec(
        self,
        fullname: str,
        path: object,  # noqa: ARG002  # the protocol's
        target: object = None,  # noqa: ARG002  # the protocol's
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        loader: Any = self  # it has what a loader needs
        return importlib.machinery.ModuleSpec(fullname, loader, origin="worker of overlapiter")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Mpi(spec.name, "MPI, as far as a worker process has it.")

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module comes complete."""


class _Kind(type):
    """The type of MPI's classes: each attribute that is asked for is there."""

    is_communicating: bool

    def __getattr__(cls, name: str) -> object:
        _refuse_special(name)
        return cls.member(f"{cls.__name__}.{name}")

    def member(cls, name: str) -> object:
        return _Refusal(name) if cls.is_communicating else _Thing(name)


class _Thing(metaclass=_Kind):
    """Something of MPI's: all of its attributes are there, and calls give something again."""

    is_communicating = False
    _name = "MPI"

    def __init__(self, name: str = "", *_: object, **__: object) -> None:
        self._name = name if isinstance(name, str) and name else type(self).__name__
        self.__module__ = _MODULE  # where pickling looks for it

    def __getattr__(self, name: str) -> object:
        _refuse_special(name)
        return type(self).member(f"{self._name}.{name}")

    def __call__(self, *_: object, **__: object) -> object:
        return _Thing(f"{self._name}()")

    def __or__(self, other: object) -> object:  # of MODE_CREATE | MODE_WRONLY, say
        return _Thing(f"{self._name} | {other}")

    def __reduce__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<MPI.{self._name} in a worker process, which has no MPI>"


class _Refusal(_Thing):
    """What may be named, but not called."""

    is_communicating = True

    def __call__(self, *_: object, **__: object) -> object:
        raise NoMpiError(f"MPI.{self._name}")


class _Comm(_Thing):
    """A communicator that knows its rank and its size."""

    is_communicating = True

    def Get_rank(self) -> int:
        return self._place()[0]

    def Get_size(self) -> int:
        return self._place()[1]

    def Get_name(self) -> str:
        return f"MPI_{self._name}"

    rank = property(Get_rank)
    size = property(Get_size)
    name = property(Get_name)

    def _place(self) -> tuple[int, int]:
        if self._name == "COMM_SELF":
            return 0, 1
        rank, _, size = world_of_this_process().partition("/")
        if self._name != "COMM_WORLD" or not size:
            raise NoMpiError(f"MPI.{self._name}.Get_rank")
        return int(rank), int(size)


def _refuse_special(name: str) -> None:
    """Refuse special names, by which code recognizes an array, an iterator, a buffer, a module."""
    if name.startswith("__"):
        raise AttributeError(name)


class _Types(dict[Any, _Thing]):
    """MPI's types by the characters of NumPy's."""

    def __missing__(self, character: object) -> _Thing:
        return self.setdefault(character, _Thing(f"_typedict[{character!r}]"))


class _Mpi(types.ModuleType):
    """The module; what is not here is made when it is asked for."""

    VERSION, SUBVERSION = 3, 1
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    UNDEFINED, ANY_SOURCE, ANY_TAG, PROC_NULL, ROOT = -32766, -1, -1, -2, -3

    Comm = _Kind("Comm", (_Comm,), {"__module__": _MODULE})
    Intracomm = _Kind("Intracomm", (Comm,), {"__module__": _MODULE})
    Exception = type("Exception", (RuntimeError,), {"__module__": _MODULE})

    # What returns nothing does nothing.
    Init = Finalize = Pcontrol = staticmethod(lambda *_: None)
    Init_thread = staticmethod(lambda required=THREAD_MULTIPLE: required)
    Query_thread = staticmethod(lambda level=THREAD_MULTIPLE: level)
    Is_initialized = Is_finalized = staticmethod(lambda: False)
    Get_version = staticmethod(lambda version=(VERSION, SUBVERSION): version)
    Get_library_version = staticmethod(lambda: "none: this is a worker process of overlapiter")
    Get_processor_name = staticmethod(lambda: os.uname().nodename)
    Wtime = staticmethod(time.monotonic)
    Wtick = staticmethod(lambda: time.get_clock_info("monotonic").resolution)

    def __getattr__(self, name: str) -> object:
        _refuse_special(name)
        made = self._make(name)
        setattr(self, name, made)  # it stays the same, as pickling requires
        return made

    def _make(self, name: str) -> object:
        if name.startswith("_typedict"):
            return _Types()
        if name.startswith("COMM_") and not name.startswith("COMM_TYPE_"):
            return self.Intracomm(name)
        if name.isupper() or name.startswith("_") or name == "pickle":
            return _Thing(name)
        if "_" in name or name.islower():
            return _Refusal(name)
        if name.endswith("comm"):
            return _Kind(name, (self.Comm,), {"__module__": _MODULE})
        facts = {"__module__": _MODULE, "is_communicating": name in ("Win", "File", "Session")}
        return _Kind(name, (_Thing,), facts)
