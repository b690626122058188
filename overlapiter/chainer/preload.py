"""Imports Chainer in the forkserver, so that the processes forked from it need not.

Chainer checks its environment when it is imported, and imports all of its functions, links and
trainer, much of SciPy, and h5py, filelock, tarfile and Pillow's names of tags; together these take
three quarters of the time. The trainer has checked the same environment, so this module skips that;
the others are loaded when something of them is used first, which a dataset seldom does. Import it
in child processes only.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import types


class _LoadedLater(types.ModuleType):
    """Stands for a module until an attribute of it is used.

    As long as it has a ``__path__``, modules below it can be imported without it.
    """

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            if "__path__" in vars(self):
                return importlib.import_module(f"{self.__name__}.{name}")
            del sys.modules[self.__name__]
            importlib.util.find_spec(self.__name__)  # loads the package above first
        module = importlib.import_module(self.__name__)
        for below, found in vars(self).items():
            vars(module).setdefault(below, found)
        vars(self).update(vars(module))
        return getattr(module, name)


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return what ``importlib.util.find_spec`` does, without importing what is above the module."""
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    above = _find_spec(parent)
    path = None if above is None else above.submodule_search_locations
    return importlib.machinery.PathFinder.find_spec(name, path) if path else None


def _load_later(name: str, *, has_path: bool = False) -> None:
    """Have an installed module that Chainer only takes note of loaded when it is used."""
    spec = None if name in sys.modules else _find_spec(name)
    if spec is None:
        return
    module = sys.modules[name] = _LoadedLater(name)
    module.__spec__ = spec
    if has_path:
        module.__path__ = [*(spec.submodule_search_locations or ())]
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


_check = types.ModuleType("chainer._environment_check")
_check.check = lambda: None  # type: ignore[attr-defined]  # a module made here
sys.modules.setdefault("chainer._environment_check", _check)

for _name in ("PIL.ExifTags", "filelock", "h5py", "tarfile"):
    _load_later(_name)
_load_later("scipy", has_path=True)
for _name in ("io", "linalg", "sparse", "special"):
    _load_later(f"scipy.{_name}")
for _name in (
    "distributions", "function_hooks", "functions", "functions.array", "iterators", "links",
    "optimizers", "serializers", "training",
):  # fmt: skip
    _load_later(f"chainer.{_name}", has_path=True)

import chainer.datasets  # noqa: E402, F401  # after the preparations
import PIL.JpegImagePlugin  # noqa: E402
import PIL.PngImagePlugin  # noqa: E402, F401

from overlapiter.chainer import datasets, images  # noqa: E402, F401

for _module in [*sys.modules.values()]:
    if isinstance(_module, _LoadedLater):
        vars(_module).pop("__path__", None)
