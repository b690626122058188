"""The options of a benchmark: a dataclass, of which the command line is made."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, get_type_hints

from bench.harness.isolated import CHECKOUT


class OptionsError(ValueError):
    """Options that cannot work together. The message says which to change."""


class NotPossibleError(SystemExit):
    """This machine lacks what a benchmark needs. The message says what."""


def option(default: object, words: str, **others: object) -> Any:
    """Return a field of a class of options, whose type tells how an argument is read.

    Args:
        default: A class below may have another one, as a plain value.
        words: The help; the default is added.
        others: ``quick``, the value with which a benchmark only shows that it runs; ``known`` for a
            list of names, and what separates them if no comma; ``choices``.
    """
    metadata = {"help": words, **others}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass
class CommonOptions:
    """What every benchmark takes; a class of its own adds to it, or only changes a default.

    Such a class is a dataclass, too.
    """

    out: Path = option(Path(), "JSON file (bench/results/own)")
    local: Path = option(CHECKOUT / ".cache/bench", "folder on the fast disk (.cache)")
    repeats: int = option(3, "interleaved runs of each", quick=1)
    seed: int = option(0, "orders follow from it")
    quick: bool = option(False, "very few and small runs: it works, no more")

    def __init_subclass__(cls) -> None:
        for inherited in dataclasses.fields(cls):  # so far those of the classes above
            default = vars(cls).get(inherited.name, inherited)
            if not isinstance(default, dataclasses.Field):
                field = dataclasses.field(default=default, metadata=inherited.metadata)
                setattr(cls, inherited.name, field)
        dataclasses.dataclass(cls)

    def check(self) -> None:
        """Complete the options, or raise an OptionsError."""


_READERS: dict[object, Callable[[str], object]] = {
    int | None: int,
    Path | None: Path,
    list[int]: lambda text: [int(float(word)) for word in text.split(",") if word],
    list[float]: lambda text: [float(word) for word in text.split(",")],
}


def add_arguments(parser: argparse.ArgumentParser, options: type[CommonOptions]) -> None:
    """Add an argument for each field."""
    types, usual = get_type_hints(options), vars(options())
    for field in dataclasses.fields(options):
        name, metadata, default = field.name, field.metadata, usual[field.name]
        words: dict[str, Any] = {"help": metadata["help"], "default": default}
        if types[name] is bool:
            words["action"] = "store_true"
        elif "choices" in metadata:
            words["choices"] = metadata["choices"]
        else:
            words["type"] = _READERS.get(types[name], types[name])
            if "known" in metadata:
                words["type"] = _names_of(metadata["known"], metadata.get("separator", ","))
            if not isinstance(default, Path) and default not in (None, []):
                shown = ",".join(map(str, default)) if isinstance(default, list) else default
                words["help"] += f" ({shown})".replace("%", "%%")
        names = [f"--{name.replace('_', '-')}", *["--staging"] * (name == "local")]
        parser.add_argument(*names, dest=name, **words)


def _names_of(known: Collection[str], separator: str) -> Callable[[str], list[str]]:
    """Return what makes a list of names of an argument, all of which have to be known."""

    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(separator)]
        if unknown := sorted(set(names) - set(known)):
            there = f"{separator} ".join(known)
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {there}")
        return names

    return parse


def picked(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some of the options by name, for a request."""
    return {name: getattr(options, name) for name in names}
