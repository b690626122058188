"""Where a store lies and who uses it: what the trainer may know, which never opens an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Site(NamedTuple):
    """Where a store lies, and how much it may hold."""

    directory: str  # the staging directory
    capacity_bytes: int | None = None  # in whole blocks of the disk; None for no limit
    keep_free_bytes: int = 0  # free space to leave on the disk


class Run(NamedTuple):
    """A run that uses a store: all processes of one iterator, or one command."""

    number: int  # drawn at random
    facts: Mapping[str, object]  # what ``overlapiter status`` shows of it
