"""Imports Chainer in the forkserver, so that the processes forked from it need not.

Chainer checks its environment when it is imported, and imports much of SciPy, and h5py,
where they are installed; together these take more than half of the time. The trainer has checked
the same environment, so this module skips that; and the two are loaded when something of them is
used first, which a dataset seldom does. Import it in child processes only.
"""

import importlib
import importlib.util
import sys
import types


class _LoadedLater(types.ModuleType):
    """Stands for a module until an attribute of it is used."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


def _load_later(name: str) -> None:
    """Have an installed module that Chainer only takes note of loaded when it is used."""
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is None:
        return
    module = sys.modules[name] = _LoadedLater(name)
    module.__spec__ = spec
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


_check = types.ModuleType("chainer._environment_check")
_check.check = lambda: None  # type: ignore[attr-defined]  # a module made here
sys.modules.setdefault("chainer._environment_check", _check)

_load_later("h5py")
if importlib.util.find_spec("scipy") is not None:
    for _name in ("io", "linalg", "sparse", "special"):
        _load_later(f"scipy.{_name}")

import chainer.datasets  # noqa: E402, F401  # after the preparations
import PIL.JpegImagePlugin  # noqa: E402
import PIL.PngImagePlugin  # noqa: E402, F401

from overlapiter.chainer import datasets  # noqa: E402, F401
