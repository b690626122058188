"""Public names that are loaded on first use, so that importing their package alone loads little."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_of(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its ``globals()``, where a name stays once it is loaded; ``__all__`` is listed.
        homes: In which module of the package each name is; a module may be such a name itself.
    """

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module = importlib.import_module(home, package["__name__"])
        value: object = module if home == f".{name}" else getattr(module, name)
        package[name] = value
        return value

    return load, lambda: sorted({*package, *package["__all__"]})
