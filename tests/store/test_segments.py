"""Segments: how files are written to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlapiter.store.places import write_many


@pytest.mark.parametrize(("block_bytes", "is_full"), [(4096, True), (4 << 20, False)])
def test_the_rest_of_a_large_block_is_not_written(
    tmp_path: Path, block_bytes: int, is_full: bool
) -> None:
    with open(tmp_path / "segment", "w+b") as segment:
        write_many(segment.fileno(), [(block_bytes, b"one"), (block_bytes, b"two")], 0)
        last = b"two".ljust(block_bytes if is_full else 0, b"\0")
        assert segment.read() == b"one".ljust(block_bytes, b"\0") + last
        assert (os.fstat(segment.fileno()).st_blocks * 512 >= block_bytes) is is_full
