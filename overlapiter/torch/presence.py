"""Whether a dataset needs PyTorch: its import takes a second. This module does not import it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType

#: Packages that do not import PyTorch, or only when they are asked to.
_WITHOUT = {"numpy", "PIL", "cv2", "overlapiter", *sys.stdlib_module_names}
#: How many things in a dataset are looked at.
_MOST_THINGS = 200


def is_needed(things: Iterable[object]) -> bool:
    """Return whether what reads some things imports PyTorch, as far as can be seen.

    It follows their classes to the modules that define these, and to what these have imported.
    """
    names = {name for thing in _within(things) for name in (_modules_of(thing) | _named_by(thing))}
    seen: set[str] = set()
    while names:
        name = names.pop()
        top = name.partition(".")[0]
        if top.startswith("torch"):
            return True
        if name not in seen and top not in _WITHOUT:
            seen.add(name)
            for value in [*getattr(sys.modules.get(name), "__dict__", {}).values()]:
                names |= _modules_of(value)
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
    return {kind.__module__ for kind in _classes_of(thing) if isinstance(kind.__module__, str)}


def _named_by(thing: object) -> set[str]:
    """Return what the code of a function, or of a class, names: what it imports is among that."""
    methods = [each for kind in _classes_of(thing) for each in vars(kind).values()]
    codes = [each.__code__ for each in (thing, *methods) if isinstance(each, FunctionType)]
    return {name for code in codes for name in code.co_names}


def _classes_of(thing: object) -> tuple[type, ...]:
    return (thing if isinstance(thing, type) else type(thing)).__mro__
