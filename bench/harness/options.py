"""The options of a benchmark: a dataclass, of which the command line is made."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from bench.harness.isolated import CHECKOUT


class OptionsError(ValueError):
    """Options that cannot work together. The message says which to change."""


def option(default: object, words: str, **parser_words: object) -> Any:
    """Return a field of a class of options.

    Args:
        default: Its type tells how an argument is read: a number, a string, a path, whether a flag
            was given, a list of integers or, with ``known``, a list of names.
        words: The help; the default is added.
        parser_words: For ``add_argument``; ``type`` where the default is None, ``known`` for names,
            and ``quick``, the value with which a benchmark only shows that it runs.
    """
    metadata = {"help": words, **parser_words}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass
class Options:
    """What every benchmark takes; a class of its own adds to it, or only changes a default."""

    out: Path = option(Path(), "JSON file (bench/results/own)", type=Path)
    local: Path = option(CHECKOUT / ".cache/bench", "folder on the fast disk (.cache)", type=Path)
    repeats: int = option(3, "interleaved runs of each", quick=1)
    seed: int = option(0, "orders follow from it")
    quick: bool = option(False, "very few and small runs: it works, no more")

    def check(self) -> None:
        """Complete the options, or raise an OptionsError."""


def add_arguments(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add an argument for each field."""
    for field in dataclasses.fields(options):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        words: dict[str, Any] = {**_metadata(options, field.name), "default": default}
        known = words.pop("known", ())
        words.pop("quick", None)
        if isinstance(default, bool):
            words["action"] = "store_true"
        elif "choices" not in words and "nargs" not in words:
            kind = (names_of(known) if known else numbers) if isinstance(default, list) else None
            words.setdefault("type", kind or type(default))
            if not isinstance(default, Path) and default not in (None, []):
                shown = ",".join(map(str, default)) if isinstance(default, list) else default
                words["help"] += f" ({shown})".replace("%", "%%")
        names = [f"--{field.name.replace('_', '-')}", *["--staging"] * (field.name == "local")]
        parser.add_argument(*names, dest=field.name, **words)


def quick_values(options: type[Options]) -> dict[str, object]:
    """Return the values of options with which a benchmark only shows that it runs."""
    metadata = {field.name: _metadata(options, field.name) for field in dataclasses.fields(options)}
    return {name: words["quick"] for name, words in metadata.items() if "quick" in words}


def _metadata(options: type[Options], name: str) -> dict[str, Any]:
    """Return the words of a field, also of one whose default a class has changed."""
    for kind in options.__mro__:
        for field in vars(kind).get("__dataclass_fields__", {}).values():
            if field.name == name and field.metadata:
                return dict(field.metadata)
    raise TypeError(f"{options.__name__}.{name}: say what it is, by option(default, words)")


def names_of(known: Collection[str], separator: str = ",") -> Callable[[str], list[str]]:
    """Return what makes a list of names of an argument, all of which have to be known."""

    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(separator)]
        if unknown := sorted(set(names) - set(known)):
            there = f"{separator} ".join(known)
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {there}")
        return names

    return parse


def numbers(text: str) -> list[int]:
    """Return the integers of an argument, separated by commas."""
    return [int(float(word)) for word in text.split(",") if word]


def picked(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some of the options by name, for a request."""
    return {name: getattr(options, name) for name in names}
