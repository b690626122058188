"""A staging directory, and files to stage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.actors import Actor, Steps
from tests.store.stores import Files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "fast"


@pytest.fixture
def files() -> Files:
    return Files(40)


@pytest.fixture
def act() -> Iterator[Callable[[Steps], Actor]]:
    """Start actors, which are killed at the end."""
    with contextlib.ExitStack() as actors:
        yield lambda steps: actors.enter_context(Actor(steps))
