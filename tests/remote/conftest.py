"""An S3 server for all tests of remote sources, and objects for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.stores import Objects, ObjectStore


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """A server that is well, unless a test makes it fail for a while."""
    with ObjectStore() as server:
        yield server


@pytest.fixture
def objects(store: ObjectStore, tmp_path: Path) -> Iterator[Objects]:
    """Files that the server has, too."""
    yield Objects(store, tmp_path / "local")
    store.fail("", 0)
