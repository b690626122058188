"""Jobs that share a directory and are killed, and what watches them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.harness.store_access import stage_bytes
from tests.chainer.scripts import wait_until
from tests.soak.jobs import Options, soak
from tests.soak.rank import Board, Row, file_name, is_right, make_files
from tests.soak.watch import Watch
from tests.support.opens import Opens
from tests.support.staged import another_run

#: Of kills.
MINUTES = float(os.environ.get("SOAK_MINUTES", "0.5"))
FEW = {"jobs": 2, "small_files": 300, "large_files": 6, "job_batches": 200, "pause_ms": 300.0}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec")
@pytest.mark.timeout(300 + 60 * MINUTES)
def test_some_kills_change_no_mini_batch_exceed_no_capacity_and_leave_nothing(tmp_path):
    result = soak(Options(MINUTES, **(FEW if MINUTES < 1 else {})), tmp_path)

    sys.stdout.write(f"{result}\n")
    assert result["violations"] == []
    assert sum(result["kills"].values()) > 0
    assert result["counts"]["wrong_mini_batches"] == 0
    assert result["watched"]["n_looks"] > 10
    n_files = result["watched"]["n_source_files"]
    assert result["watched"]["n_source_opens"] > n_files  # the capacity had files staged again
    assert result["fresh_mini_batches"] > 0


def mini_batch(folder: Path, indices: list[int]) -> list:
    data = [(folder / file_name(index)).read_bytes() for index in indices]
    pairs = zip(data, indices, strict=True)
    return [(np.frombuffer(content, np.uint8), np.int32(index)) for content, index in pairs]


def test_a_mini_batch_is_wrong_if_a_byte_an_index_or_an_example_is(tmp_path):
    make_files([tmp_path / "source"], 3, 1)
    batch = mini_batch(tmp_path / "source", [2, 3])
    flipped = batch[1][0].copy()
    flipped[-1] ^= 1
    reference = str(tmp_path / "source")

    assert is_right(batch, [2, 3], reference)
    assert not is_right([batch[0], (flipped, np.int32(3))], [2, 3], reference)
    assert not is_right(batch, [3, 2], reference)
    assert not is_right(batch[:1], [2, 3], reference)


def test_all_folders_get_the_same_files(tmp_path):
    folders = [tmp_path / "source", tmp_path / "reference"]

    n_bytes = make_files(folders, 3, 1)

    contents = [[path.read_bytes() for path in sorted(folder.iterdir())] for folder in folders]
    assert contents[0] == contents[1]
    assert sum(map(len, contents[0])) == n_bytes
    assert len(contents[0][3]) > 1 << 20


def test_the_board_shows_what_each_rank_has_put(tmp_path):
    written, read = Board(tmp_path / "board"), Board(tmp_path / "board")

    written.put(2, Row(os.getpid(), 7, 0, 56, 1))

    assert read.rows()[1:3] == [Row(0, 0, 0, 0, 0), Row(os.getpid(), 7, 0, 56, 1)]
    written.close()
    read.close()


def test_opens_of_files_are_counted_each(tmp_path):
    make_files([tmp_path / "source"], 2, 0)
    opens = Opens(str(tmp_path / "source"))

    for index in (1, 0, 1):  # the kernel merges two of one file in a row
        (tmp_path / "source" / file_name(index)).read_bytes()

    opens.start()
    wait_until(lambda: sum(opens.counts.values()) == 3)
    assert opens.counts == {file_name(0): 1, file_name(1): 2}
    opens.end()


@pytest.mark.parametrize(("capacity_bytes", "n_over"), [(1 << 30, 0), (0, 1)])
def test_the_watch_tells_when_more_is_charged_than_the_capacity(tmp_path, capacity_bytes, n_over):
    staging = tmp_path / "staging"
    watch = Watch(str(staging), capacity_bytes)
    with another_run(staging, tmp_path) as store:
        stage_bytes(store, ["a"], bytes(5000))
        watch.look()
    watch.close()

    assert watch.seen["n_looks"] == 1
    assert watch.seen["largest_total_bytes"] >= 8192
    assert watch.seen["n_over_capacity"] == n_over
    assert watch.seen["n_miscounted"] == 0
