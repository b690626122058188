"""The options of a benchmark: a dataclass, of which the command line is made."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from bench.harness.isolated import CHECKOUT
from bench.harness.machine import is_installed

#: Where a module is not installed that some benchmarks need.
_TO_DO = {
    "chainer": "run it by python3 dev.py bench, with Python 3.11 or 3.10 on the path",
    "torch": "run it by python3 dev.py bench --torch",
}


class OptionsError(ValueError):
    """Options that cannot work together. The message says which to change."""


class NotPossibleError(SystemExit):
    """This machine lacks what a benchmark needs. The message says what."""


def require(*modules: str) -> None:
    """Raise a NotPossibleError if one cannot be imported, which says how to come by it."""
    for module in modules:
        if not is_installed(module):
            to_do = _TO_DO.get(module, f"install what has the module {module}")
            raise NotPossibleError(f"{module} is not installed; {to_do}")


def keep_to_cores(n_cores: int) -> None:
    """Use so many cores from now on; raise a NotPossibleError if there are fewer."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < n_cores:
        raise NotPossibleError(f"it needs {n_cores} cores, and there are {len(cores)}")
    os.sched_setaffinity(0, cores[:n_cores])


def option(default: object, words: str, **others: object) -> Any:
    """Return a field of a class of options, whose type tells how an argument is read.

    The words are its help, to which the default is added; a class below may have another default,
    as a plain value. The others are ``quick``, the value with which a benchmark only shows that it
    runs; ``known`` for a list of names, and what separates them if no comma; ``choices``.
    """
    is_list = isinstance(default, list)
    usual = {"default_factory": default.copy} if is_list else {"default": default}
    return dataclasses.field(**usual, metadata={"help": words, **others})


@dataclasses.dataclass
class CommonOptions:
    """What every benchmark takes; a class of its own adds to it, or only changes defaults."""

    fixed = ()  # names of options of the classes above that it would ignore
    scratch = Path()  # an empty folder on the fast disk, while it is measured; no argument
    out: Path = option(Path(), "JSON file (bench/results/own)")
    local: Path = option(CHECKOUT / ".cache/bench", "folder on the fast disk (.cache)")
    repeats: int = option(3, "interleaved runs of each", quick=1)
    seed: int = option(0, "orders follow from it")
    cores: int = option(0, "cores to use, without which it is left out (all)", quick=0)
    fill_memory: bool = option(
        False, "fill free memory before each run, where a virtual machine gives it to its host",
        quick=False,
    )  # fmt: skip
    quick: bool = option(False, "very few and small runs: it works, no more")

    def __init_subclass__(cls) -> None:
        for inherited in dataclasses.fields(cls):  # so far those of the classes above
            default = vars(cls).get(inherited.name, inherited)
            if not isinstance(default, dataclasses.Field):
                field = dataclasses.field(default=default, metadata=inherited.metadata)
                setattr(cls, inherited.name, field)
        dataclasses.dataclass(cls)

    def check(self) -> None:
        """Complete the options, or raise an OptionsError, as for those that would be ignored."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        if given := [name for name in self.fixed if getattr(self, name) != usual[name]]:
            words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise OptionsError(f"this benchmark would ignore {words}: leave it out")

    def published(self) -> dict[str, object]:
        """Return those that were used, by name, without places of the user's own."""
        used = {name: value for name, value in vars(self).items() if name not in self.fixed}
        return {name: value for name, value in used.items() if not isinstance(value, Path)}


def quick_of(options: type[CommonOptions]) -> dict[str, Any]:
    """Return the values with which a benchmark only shows that it runs, by name."""
    fields = dataclasses.fields(options)
    return {each.name: each.metadata["quick"] for each in fields if "quick" in each.metadata}


def parser_of(options: type[CommonOptions], program: str, text: str) -> argparse.ArgumentParser:
    """Return what reads a command line, with an argument for each field."""
    form = argparse.RawDescriptionHelpFormatter
    more = "bench/results/README.md says what it measures"
    parser = argparse.ArgumentParser(program, None, text, more, formatter_class=form)
    types, usual = get_type_hints(options), vars(options())
    for field in dataclasses.fields(options):
        name, metadata, default = field.name, field.metadata, usual[field.name]
        words: dict[str, Any] = {"help": metadata["help"], "default": default}
        if types[name] is bool:
            words["action"] = "store_true"
        elif "choices" in metadata:
            words["choices"] = metadata["choices"]
        else:
            how = {key: metadata[key] for key in ("known", "separator") if key in metadata}
            words["type"] = _reader_of(types[name], **how)
            if not isinstance(default, Path) and default not in (None, []):
                shown = ",".join(map(str, default)) if isinstance(default, list) else default
                words["help"] += f" ({shown})".replace("%", "%%")
        names = [f"--{name.replace('_', '-')}", *["--staging"] * (name == "local")]
        parser.add_argument(*names, dest=name, **words)
    return parser


def _reader_of(kind: Any, known: Collection[str] = (), separator: str = ",") -> Callable:
    """Return what reads an argument of a type; all of a list of names have to be known."""
    one, *_ = *get_args(kind), kind
    if get_origin(kind) is not list:
        return one

    def parse(text: str) -> list:
        words = [word.strip() for word in text.split(separator) if word]
        if one is not str:
            return [one(float(word)) for word in words]
        if unknown := sorted(set(words) - set(known)):
            there = f"{separator} ".join(known)
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {there}")
        return words

    return parse


def picked(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some of the options by name, for a request."""
    return {name: getattr(options, name) for name in names}
