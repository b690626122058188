"""The modules in C are used where they are, unless they are not wanted."""

from __future__ import annotations

import json

import pytest

from overlapiter.compiled import compiled


def test_what_is_not_built_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVERLAPITER_NO_C", raising=False)
    assert compiled("overlapiter.origins._nothing") is None
    assert compiled("json") is json


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPITER_NO_C", "1")
    assert compiled("json") is None
