"""The traces of a job of 16 ranks, joined to one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, run_job
from tests.cli.commands import overlapiter
from tests.support.traces import assert_valid

pytestmark = [*NEEDS_MPIEXEC, pytest.mark.slow, pytest.mark.alone]

N_RANKS = 16


def test_the_traces_of_16_ranks_are_joined_to_one_that_viewers_take(
    tmp_path: Path, image_folder: Path
) -> None:
    ended = run_job("rank_traces.py", N_RANKS, tmp_path, image_folder)
    assert ended.exit_status == 0, ended.output
    files = [tmp_path / "out.json", *tmp_path.glob("out.rank*.json")]
    assert len(files) == N_RANKS

    joined = tmp_path / "all.json"
    done = overlapiter("trace", *files, "--output", joined, "--json")

    events = json.loads(joined.read_text())
    assert_valid(events)
    assert len(events) == json.loads(done.stdout)["n_events"]
    assert joined.stat().st_size <= sum(file.stat().st_size for file in files)
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    for rank in range(N_RANKS):
        assert {f"rank {rank}: trainer", f"rank {rank}: file reader 0"} <= named
