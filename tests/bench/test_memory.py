"""Free memory that is filled before a run, where a virtual machine gives it to its host."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

from bench.harness import memory

_MIB = 1 << 20


def test_memory_is_filled_until_that_leaves_no_less_free(monkeypatch, tmp_path):
    steps = [900, 700, 700, 450, 450, 440, 800, 790]  # MiB before and after each, of two calls
    free = itertools.chain([0], steps)  # the first look is for the size of the memory
    read, total = [], 1 << 30
    preadv = os.preadv

    def note(fd, pieces, position):
        read.append((position, preadv(fd, pieces, position)))

    monkeypatch.setattr(os, "preadv", note)
    look = lambda: SimpleNamespace(total=total, free=next(free) * _MIB)  # noqa: E731
    monkeypatch.setattr(memory.psutil, "virtual_memory", look)
    fill = memory.filler(tmp_path)
    fill()
    n_first = len(read)
    fill()

    assert n_first == 3 * (256 // 4)
    assert [position // _MIB for position, _ in read] == [4 * n for n in range(4 * (256 // 4))]
    assert {n_bytes for _, n_bytes in read} == {4 * _MIB}
    assert (tmp_path / "filler").stat().st_blocks == 0  # it takes no room on the disk
