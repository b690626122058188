"""What is to be done when a module is imported: at once if it is, or right after it will be."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Called with the module, and whether all of its names are there: it is loaded, and not just begun.
Act = Callable[[ModuleType, bool], None]

#: By the name of the module what is to be done, once each.
_acts: dict[str, dict[Act, None]] = {}


def when_imported(name: str, act: Act) -> None:
    """Have a function called each time this process loads a module, and now if it is loaded.

    What it raises while the module is loaded, the import raises.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        finder: Any = _Finder()
        sys.meta_path.insert(0, finder)
    _acts.setdefault(name, {})[act] = None
    if isinstance(module := sys.modules.get(name), ModuleType):
        act(module, is_loaded(module))


def is_loaded(module: ModuleType) -> bool:
    """Return whether a module is neither being loaded nor one that will be when it is used."""
    spec = getattr(module, "__spec__", None)
    return type(module) is ModuleType and not getattr(spec, "_initializing", False)


class _Finder:
    """Finds modules as the other finders do, and adds to the loading of some."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _acts:
            return None
        for finder in sys.meta_path:
            find: Callable[..., ModuleSpec | None] | None = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(fullname, path, target)
            if spec is not None:
                # The loader itself stays: libraries ask it for their data.
                with contextlib.suppress(AttributeError):  # one without a dictionary
                    _act_after(spec.loader)
                return spec
        return None


def _act_after(loader: Any) -> None:
    """Have a loader do what is to be done with the module that it loads next."""
    if isinstance(loader, type) or loader is None:  # shared by all modules of its kind
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        for act in [*_acts[module.__name__]]:
            act(module, True)

    loader.exec_module = exec_module
