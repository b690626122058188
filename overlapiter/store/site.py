"""Where a store lies and who uses it: what the trainer may know, which never opens an index."""

from __future__ import annotations

import os
import secrets
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

    @classmethod
    def of_command(cls, command: str, staging: Mapping[str, object]) -> Run:
        """Return what a command of overlapiter's is to others."""
        facts = {"command": f"overlapiter {command}", "trainer_pid": os.getpid()}
        return cls(secrets.randbits(62), facts | {"staging": staging})
