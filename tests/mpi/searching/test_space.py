"""A space says what is searched, and is checked before anything starts."""

from __future__ import annotations

import pytest

from overlapiter.errors import OptionError
from overlapiter.mpi.searching.space import Range, space_of
from overlapiter.mpi.training.settings import split

SPACE = {
    "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
    "batch": {"low": 16, "high": 64, "step": 16},
    "optimizer": ["sgd", "adam"],
}


class FirstOfAll:
    """Suggests the smallest number, and the first choice; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        self.asked.append(("float", name, low, high, log))
        return low

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int:
        self.asked.append(("int", name, low, high, step, log))
        return low

    def suggest_categorical(self, name: str, choices: list) -> object:
        self.asked.append(("choice", name, *choices))
        return choices[0]


def test_each_setting_is_suggested_as_the_file_says() -> None:
    trial = FirstOfAll()
    values = space_of({"space": SPACE, "settings": {"epochs": 3}}, {}).suggest(trial)
    assert values == {"learning_rate": 1e-4, "batch": 16, "optimizer": "sgd", "epochs": 3}
    assert trial.asked == [
        ("float", "learning_rate", 1e-4, 0.1, True),
        ("int", "batch", 16, 64, 16, False),
        ("choice", "optimizer", "sgd", "adam"),
    ]


def test_what_the_caller_gives_comes_before_the_file() -> None:
    space = space_of({"space": SPACE, "settings": {"epochs": 3}}, {"epochs": 4})
    assert space.fixed == {"epochs": 4}


def test_arguments_of_the_model_are_kept_apart() -> None:
    space = space_of({"space": {"model.n_hidden": [32, 64], "batch": [8]}}, {})
    assert split(space.suggest(FirstOfAll())) == ({"batch": 8}, {"n_hidden": 32})


def test_a_range_of_two_whole_numbers_is_one_of_whole_numbers() -> None:
    space = space_of({"space": {"batch": {"low": 8, "high": 128, "log": True}}}, {})
    assert space.searched["batch"] == Range(8, 128, 1, log=True)
    trial = FirstOfAll()
    space.suggest(trial)
    assert trial.asked == [("int", "batch", 8, 128, 1, True)]


@pytest.mark.parametrize(
    ("tables", "option", "words"),
    [
        ({}, "space", "nothing to search"),
        ({"spaces": {}}, "space", r"\[spaces\] is no table"),
        ({"space": {"learning_rat": [0.1]}}, "learning_rat", "is no setting"),
        ({"space": {"learning_rate": 0.1}}, "learning_rate", "is no range"),
        ({"space": {"learning_rate": []}}, "learning_rate", "is no range"),
        ({"space": {"batch": {"low": 8}}}, "batch", "is no range"),
        ({"space": {"batch": {"low": 8, "high": 8}}}, "batch", "low must be smaller"),
        ({"space": {"batch": {"low": 0, "high": 8}}}, "batch", "too small"),
        ({"space": {"batch": {"low": 1, "high": 8, "step": 0}}}, "batch", "step is 0"),
        (
            {"space": {"learning_rate": {"low": 0.5, "high": 4.0, "step": 1}}},
            "learning_rate",
            "a step is for whole numbers",
        ),
        ({"space": {"batch": {"low": "a", "high": "b"}}}, "batch", "'a' is no number"),
        (
            {"space": {"learning_rate": {"low": 0.0, "high": 1.0, "log": True}}},
            "learning_rate",
            "low must be above 0",
        ),
        ({"space": {"optimizer": ["sgd", "adamax"]}}, "optimizer", "'adamax' is none of"),
        ({"space": {"batch": [8]}, "settings": {"batch": 8}}, "batch", "both searched and fixed"),
        ({"space": {"batch": [8]}, "settings": {"out": "x"}}, "out", "sets it for each trial"),
        ({"space": {"batch": [8]}, "settings": {"epochs": 0}}, "epochs", "too small"),
    ],
)
def test_a_space_that_cannot_work_is_refused(tables, option, words) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        space_of(tables, {})
    assert raised.value.option == option
