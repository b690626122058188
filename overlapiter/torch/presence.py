"""Whether PyTorch is imported: in the workers that takes a second, and not every dataset needs it.

This module does not import it.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

#: Packages that do not import PyTorch, or only when they are asked to.
_WITHOUT = {"numpy", "PIL", "cv2", "overlapiter", *sys.stdlib_module_names}
#: How many things in a dataset are looked at.
_MOST_THINGS = 200


def is_tensor(thing: object) -> bool:
    """Return whether something is a plain tensor: there is none where PyTorch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and type(thing) is torch.Tensor


def when_imported(act: Callable[[], None]) -> None:
    """Call a function when this process has imported PyTorch: now, later, or never."""
    if "torch" in sys.modules:
        act()
    else:
        finder: Any = _Finder(act)
        sys.meta_path.insert(0, finder)


class _Finder:
    """Finds PyTorch as the other finders do, and adds to its loading."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(self, fullname: str, *_: object) -> Any:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(fullname)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._act()

            spec.loader.exec_module = exec_module
        return spec


def is_needed(things: Iterable[object]) -> bool:
    """Return whether what reads some things imports PyTorch, as far as can be seen.

    It follows their classes to the modules that define these, and to what these have imported.
    """
    names = {name for thing in _within(things) for name in (_modules_of(thing) | _named_by(thing))}
    seen: set[str] = set()
    while names:
        name = names.pop()
        top = name.split(".")[0]
        if top.startswith("torch"):
            return True
        if name in seen or top in _WITHOUT:
            continue
        seen.add(name)
        module = sys.modules.get(name)
        for value in [] if module is None else list(vars(module).values()):
            names.update(_modules_of(value))
    return False


def _within(things: Iterable[object]) -> list[object]:
    """Return some things and what is in them; of many, the first ones."""
    found = list(things)
    for thing in found:  # it grows meanwhile
        if len(found) > _MOST_THINGS:
            break
        parts = thing if isinstance(thing, (list, tuple, dict)) else getattr(thing, "__dict__", {})
        inner = parts.values() if isinstance(parts, dict) else parts
        found += itertools.islice(inner, 8)
    return found


def _modules_of(thing: object) -> set[str]:
    """Return the names of the modules that define a thing: a module, a function, a class."""
    if isinstance(thing, ModuleType):
        return {thing.__name__}
    if isinstance(thing, FunctionType):
        return {thing.__module__ or ""}
    # A class in C may have something else there than a name.
    names = [base.__module__ for base in _class_of(thing).__mro__]
    return {name for name in names if isinstance(name, str)}


def _named_by(thing: object) -> set[str]:
    """Return what the code of a function, or of a class, names: what it imports is among that."""
    functions = [
        thing,
        *(value for base in _class_of(thing).__mro__ for value in vars(base).values()),
    ]
    codes = [each.__code__ for each in functions if isinstance(each, FunctionType)]
    return {name for code in codes for name in code.co_names}


def _class_of(thing: object) -> type:
    return thing if isinstance(thing, type) else type(thing)
