"""What the tests of the store build on: a small source, and what a store keeps on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from overlapiter.staging.room import Room
from overlapiter.staging.store import Staged, Store

DAY_NS = 86_400 * 10**9


def made_store(
    source: Path, staging: Path, capacity_bytes: int | None = None, **options: Any
) -> Store:
    store = Store(str(staging), str(source), Room(str(staging), capacity_bytes, 0), **options)
    store.create()
    return store


def name_of(source: Path, number: int) -> str:
    return str(source / "train" / "n01" / f"{number}.bin")


def partials(staging: Path) -> list[Path]:
    return [*staging.glob("*/partial/*")]


def is_same(staged: Staged, name: str) -> bool:
    return Path(staged.path).read_bytes() == Path(name).read_bytes()


def rewrite(name: str, data: bytes) -> None:
    """Change a file, with an mtime that no clock's grain can hide."""
    before = os.stat(name)
    Path(name).write_bytes(data)
    os.utime(name, ns=(before.st_mtime_ns + DAY_NS, before.st_mtime_ns + DAY_NS))


def add_file(directory: str, name: str, n_bytes: int, part: str = "files") -> Path:
    path = Path(directory, "images-0", part, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(n_bytes))
    return path
