"""What the supervisor records of its run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlapiter.staging.records import USERS_FOLDER, present
from overlapiter.stats import StatsBoard
from overlapiter.workers.plan import StagingPlan, SupervisorPlan, TierPlan
from overlapiter.workers.supervisor.attendance import recorded


def test_credentials_are_not_recorded(tmp_path: Path) -> None:
    tiers = tuple(TierPlan(str(tmp_path / name), 100, 0, 0) for name in ("ram", "disk"))
    for tier in tiers:
        os.mkdir(tier.directory)
    plan = SupervisorPlan(
        n_readers=1,
        n_build_ahead=1,
        batch_size=2,
        dataset_size=3,
        index_type="l",
        seed=None,
        is_skipping=False,
        max_parts_per_reader=None,
        staging=StagingPlan(
            tiers=tiers,
            source="s3://bucket",
            validate=True,
            n_prefetchers=1,
            reads_in_flight=None,
            storage_options={"secret": "precious"},
        ),
        imports=(),
        trainer_pid=os.getpid(),
    )
    board, fd = StatsBoard.create(1, 1)
    with recorded(plan, board, fd, pytest.fail):
        for tier in tiers:
            (run,) = present(tier.directory)
            assert run.facts["staging"]["source"] == "s3://bucket"
            assert run.facts["staging"]["capacity_bytes"] == 100
            (path,) = Path(tier.directory, USERS_FOLDER).iterdir()
            assert "precious" not in path.read_text()
    board.detach()
    os.close(fd)
    for tier in tiers:
        text = Path(tier.directory, "overlapiter.runs.jsonl").read_text()
        assert "s3://bucket" in text
        assert "precious" not in text
