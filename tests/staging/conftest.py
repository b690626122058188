"""A source of a few files, an empty staging directory, and a store that joins them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapiter.staging.store import Store
from tests.staging.stores import made_store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "train" / "n01").mkdir(parents=True)
    for n in range(20):
        (folder / "train" / "n01" / f"{n}.bin").write_bytes(bytes([n]) * (1000 + n))
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


@pytest.fixture
def store(source: Path, staging: Path) -> Iterator[Store]:
    store = made_store(source, staging)
    yield store
    store.close()
