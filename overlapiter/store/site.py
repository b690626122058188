"""Where a store lies and who uses it: what the trainer may know, which never opens an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Site(NamedTuple):
    """Where a store lies, and how much it may hold.

    Attributes:
        directory: The staging directory.
        capacity_bytes: Most bytes, in whole blocks of the disk; None for no limit.
        keep_free_bytes: Free space to leave on the disk.
    """

    directory: str
    capacity_bytes: int | None = None
    keep_free_bytes: int = 0


class Run(NamedTuple):
    """A run that uses a store: all processes of one iterator, or one command.

    Attributes:
        number: Its number, drawn at random.
        facts: What ``overlapiter status`` shows of it.
    """

    number: int
    facts: Mapping[str, object]
