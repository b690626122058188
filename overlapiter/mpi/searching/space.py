"""The space of settings in which a search looks. Pure.

A TOML file says which settings are searched and which are fixed::

    [space]
    learning_rate = {low = 1e-4, high = 0.1, log = true}
    batch = {low = 16, high = 128, step = 16}
    optimizer = ["sgd", "momentum", "adam"]
    "model.n_hidden" = [32, 64]       # an argument of build_model()

    [settings]
    epochs = 5
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from overlapiter.errors import OptionError
from overlapiter.mpi.training.settings import settings_of, split

Choice = str | int | float | bool
#: A trial's settings by name, and the arguments of ``build_model()``, as train takes them.
Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two, both included; whole ones if both are whole."""

    low: float
    high: float
    step: int = 1  # the distance of whole numbers
    log: bool = False  # whether their logarithms are equally likely


@dataclasses.dataclass(frozen=True)
class Space:
    """What is searched, by name, and the settings that all trials share."""

    searched: dict[str, Range | list[Choice]]
    fixed: Values

    def suggest(self, trial: Any) -> Values:
        """Return the settings of a trial of Optuna's."""
        values = dict(self.fixed)
        for name, possible in self.searched.items():
            if isinstance(possible, list):
                values[name] = trial.suggest_categorical(name, possible)
            elif isinstance(possible.low, int) and isinstance(possible.high, int):
                values[name] = trial.suggest_int(
                    name, possible.low, possible.high, step=possible.step, log=possible.log
                )
            else:
                values[name] = trial.suggest_float(
                    name, possible.low, possible.high, log=possible.log
                )
        return values

    def to_json(self) -> str:
        """Return the space as text; equal spaces give equal texts."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=os.fspath)


def space_of(tables: Mapping[str, Any], given: Mapping[str, Any]) -> Space:
    """Return the space that the tables of a TOML file describe.

    The settings that are given come before those of the tables.

    Raises:
        OptionError: A name is unknown, or a value cannot work.
    """
    unknown = sorted(tables.keys() - {"space", "settings"})
    if unknown:
        message = f"[{unknown[0]}] is no table of a search; there are [space] and [settings]"
        raise OptionError("space", message)
    searched = {name: _possible(name, value) for name, value in tables.get("space", {}).items()}
    if not searched:
        example = "learning_rate = {low = 1e-4, high = 0.1, log = true}"
        raise OptionError("space", f"there is nothing to search; write [space] and {example}")
    fixed = {**tables.get("settings", {}), **given}
    if "out" in {**fixed, **searched}:
        raise OptionError("out", "the search sets it for each trial; leave it out")
    both = sorted(searched.keys() & fixed.keys())
    if both:
        raise OptionError(both[0], "is both searched and fixed; leave one of them out")
    space = Space(searched, fixed)
    _check(space)
    return space


def _possible(name: str, value: object) -> Range | list[Choice]:
    """Return what the file says of one setting."""
    if isinstance(value, list) and value and all(isinstance(each, Choice) for each in value):
        return value
    fields = {field.name for field in dataclasses.fields(Range)}
    if not isinstance(value, dict) or not {"low", "high"} <= value.keys() <= fields:
        words = "write a list, or {low = 1, high = 8}, with log = true or step = 2 if you like"
        raise OptionError(name, f"{value!r} is no range: {words}")
    found = Range(**value)
    for number in (found.low, found.high, found.step):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise OptionError(name, f"{number!r} is no number")
    if not found.low < found.high:
        raise OptionError(name, f"low is {found.low} and high {found.high}; low must be smaller")
    if found.log and (found.low <= 0 or found.step != 1):
        raise OptionError(name, "with log = true, low must be above 0, and there is no step")
    if "step" in value and not (isinstance(found.low, int) and isinstance(found.high, int)):
        raise OptionError(name, "a step is for whole numbers; leave it out, or write a list")
    if found.step < 1 or not isinstance(found.step, int):
        raise OptionError(name, f"step is {found.step}; it must be a whole number of at least 1")
    return found


def _check(space: Space) -> None:
    """Try the smallest and largest value, or each choice, of every setting by itself."""
    first = {name: _ends(possible)[0] for name, possible in space.searched.items()}
    for name, possible in space.searched.items():
        for value in _ends(possible):
            settings_of(split({**space.fixed, **first, name: value})[0])


def _ends(possible: Range | list[Choice]) -> list[Choice]:
    return possible if isinstance(possible, list) else [possible.low, possible.high]
