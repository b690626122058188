"""A source of some files, with a list of them, and the place of a staging directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

N_FILES = 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "lustre"
    old_ns = 1_600_000_000 * 10**9
    for n in range(N_FILES):
        path = folder / f"c{n % 3}" / f"{n}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([n]) * (1000 + n))
        os.utime(path, ns=(old_ns, old_ns + n))
    return folder


@pytest.fixture
def listing(source: Path, tmp_path: Path) -> Path:
    """Return a list of all files, as Chainer's pairs."""
    path = tmp_path / "train.txt"
    names = sorted(str(found.relative_to(source)) for found in source.rglob("*.bin"))
    path.write_text("".join(f"{name} {n}\n" for n, name in enumerate(names)))
    return path


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    return tmp_path / "fast"


@pytest.fixture
def contents(source: Path) -> dict[str, bytes]:
    files = [path for path in source.rglob("*") if path.is_file()]
    return {str(path.relative_to(source)): path.read_bytes() for path in files}
