"""Options check themselves when they are made, and say what would be right."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter import Staging, Tier
from overlapiter.errors import OptionError
from overlapiter.options import check_count, parse_size

TERABYTE = 10**12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("123B", 123),
        ("2KB", 2000),
        ("2 KiB", 2048),
        ("200GB", 200 * 10**9),
        ("1.5GiB", 3 * 2**29),
        (" 3 tb ", 3 * TERABYTE),
        (".5TiB", 2**39),
        ("50%", TERABYTE // 2),
        ("100%", TERABYTE),
        ("0%", 0),
        ("0.1 %", 10**9),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_is_bytes_or_a_text_with_a_unit(text, expected):
    assert parse_size("capacity", text, TERABYTE) == expected


@pytest.mark.parametrize(
    "wrong",
    [-1, "", " ", "GB", "-5GB", "5 G B", "5XB", "5K", "1e9", "101%", "1_000", "²", "5GB 5GB", "%"],
)
def test_a_size_that_cannot_be_is_refused_by_the_name_of_its_option(wrong):
    with pytest.raises(OptionError, match=r"^capacity: ") as caught:
        parse_size("capacity", wrong, TERABYTE)
    assert caught.value.option == "capacity"


@pytest.mark.parametrize("wrong", [None, True, 1.5, b"5GB", [5]])
def test_a_size_of_another_type_is_refused(wrong):
    with pytest.raises(OptionError, match="200GB"):
        parse_size("keep_free", wrong, TERABYTE)


@given(st.text(alphabet="0123456789. KMGTIB%kmgtib-e", max_size=12) | st.integers())
def test_a_size_is_understood_or_refused_but_never_fails_otherwise(text):
    try:
        size = parse_size("capacity", text, TERABYTE)
    except OptionError:
        return
    assert isinstance(size, int)
    assert size >= 0


def test_a_size_of_very_many_digits_is_a_number():
    assert parse_size("capacity", "9" * 400 + "GB", TERABYTE) > 10**400


@pytest.mark.parametrize("value", [1, np.int32(1)])
def test_a_count_is_anything_that_python_takes_for_a_whole_number(value):
    count = check_count("n_processes", value)
    assert (count, type(count)) == (1, int)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "1", None, np.float64(1)])
def test_anything_else_is_no_count(wrong):
    with pytest.raises(OptionError, match=r"^n_processes: "):
        check_count("n_processes", wrong)


def test_true_is_no_number_that_is_too_small():
    with pytest.raises(OptionError, match="True is no whole number; give one of at least 1"):
        check_count("batch_size", True)


def test_the_least_count_can_be_chosen():
    assert check_count("n_prefetch", 0, minimum=0) == 0
    with pytest.raises(OptionError, match="at least 0"):
        check_count("n_prefetch", -1, minimum=0)


@pytest.mark.parametrize("directory", ["/nvme/me", Path("/nvme/me"), "relative"])
def test_the_defaults_work_with_any_directory(directory):
    staging = Staging(directory)
    assert staging.directory == os.path.abspath(directory)
    assert staging.capacity is None


def test_relative_paths_are_meant_from_where_the_options_are_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    staging = Staging("fast", source="data", tiers=[Tier("ram")])
    monkeypatch.chdir("/")
    paths = [staging.source, *(tier.directory for tier in staging.all_tiers())]
    assert paths == [str(tmp_path / name) for name in ("data", "ram", "fast")]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("n_prefetchers", 0),
        ("n_prefetchers", 1.5),
        ("reads_in_flight", 0),
        ("reads_in_flight", 1.5),
        ("look_ahead", -1),
        ("capacity", 0),
        ("capacity", "0%"),
        ("capacity", "lots"),
        ("capacity", -5),
        ("keep_free", "200%"),
        ("keep_free", "100%"),
        ("keep_free", None),
        ("validate", "hash"),
        ("validate", None),
    ],
)
def test_a_wrong_value_is_refused_at_once_by_its_name(option, value):
    with pytest.raises(OptionError, match=f"^{option}: ") as caught:
        Staging("/nvme/me", **{option: value})
    assert caught.value.option == option


def test_an_empty_directory_is_refused():
    with pytest.raises(OptionError, match=r"^directory: "):
        Staging("")


def test_options_are_given_by_name():
    with pytest.raises(TypeError):
        Staging("/nvme/me", "/lustre")  # type: ignore[misc]  # that is the point


def test_options_cannot_be_changed_unseen():
    staging = Staging("/nvme/me")
    with pytest.raises(dataclasses.FrozenInstanceError):
        staging.capacity = 5  # type: ignore[misc]  # that is the point
    with pytest.raises(OptionError):
        dataclasses.replace(staging, capacity="much")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "is missing"),
        ({"tiers": ["/ram"]}, "not all overlapiter.Tier"),
        ({"tiers": [Tier("/ram"), Tier("/ram/")]}, "twice"),
        ({"tiers": [Tier("/ram")], "capacity": "1GB"}, "belongs to one of the tiers"),
        ({"directory": "/ram", "tiers": [Tier("/ram")], "capacity": 1}, "belongs to one"),
    ],
)
def test_tiers_that_contradict_each_other_are_refused(options, word):
    with pytest.raises(OptionError, match=word):
        Staging(**options)


def test_a_tier_without_a_directory_or_any_room_is_refused():
    with pytest.raises(OptionError, match="is empty"):
        Tier("")
    with pytest.raises(OptionError, match="is zero"):
        Tier("/ram", 0)
