"""Whether a dataset needs PyTorch: its import takes a second. This module does not import it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType

#: How many items of a list, or attributes, are looked at.
_MOST_PARTS = 30


def is_needed(things: Iterable[object]) -> bool:
    """Return whether what reads some things imports PyTorch, as far as that is seen at a glance.

    The modules that define them and what is in them are PyTorch's, or have imported something of
    its. A wrong guess costs time alone.
    """
    seen = list(things)
    for _ in range(2):  # a list of examples holds tuples of tensors
        seen += [part for thing in seen for part in _parts_of(thing)]
    names = {name for thing in seen for name in _modules_of(thing)}
    modules = [getattr(sys.modules.get(name), "__dict__", {}) for name in names]
    values = [value for module in modules for value in [*module.values()]]
    return any(name.startswith("torch") for name in names.union(*map(_modules_of, values)))


def _parts_of(thing: object) -> Iterable[object]:
    inner = thing if isinstance(thing, (list, tuple)) else getattr(thing, "__dict__", {}).values()
    return itertools.islice(inner, _MOST_PARTS)


def _modules_of(thing: object) -> set[str]:
    """Return the names of the modules that define a thing: a module, a function, a class."""
    if isinstance(thing, ModuleType):
        return {thing.__name__}
    if isinstance(thing, FunctionType):
        return {thing.__module__ or ""}
    kinds = (thing if isinstance(thing, type) else type(thing)).__mro__
    # A class in C may have something else there than a name.
    return {kind.__module__ for kind in kinds if isinstance(kind.__module__, str)}
