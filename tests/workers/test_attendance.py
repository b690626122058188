"""What the staging directory holds of a run."""

from __future__ import annotations

import json
import os

from overlapiter.board import StatsBoard
from overlapiter.store.site import Site
from overlapiter.workers.plan import StagingPlan
from overlapiter.workers.supervisor.main import run_of
from tests.workers.plans import plan_of


def test_credentials_are_no_facts_of_a_run() -> None:
    sites = tuple(Site(f"/{name}/me", 100) for name in ("ram", "disk"))
    plan = plan_of(
        batch_size=2,
        dataset_size=3,
        staging=StagingPlan(
            sites=sites,
            source="s3://bucket",
            validate="mtime",
            n_prefetchers=1,
            reads_in_flight=None,
            storage_options={"secret": "precious"},
        ),
        trainer_pid=os.getpid(),
        run_number=7,
    )
    board, fd = StatsBoard.create(1, 1)
    run = run_of(plan, fd)
    board.detach()
    os.close(fd)
    assert run.number == 7
    assert run.facts["trainer_pid"] == os.getpid()
    assert run.facts["staging"]["source"] == "s3://bucket"
    assert [tier["capacity_bytes"] for tier in run.facts["staging"]["tiers"]] == [100, 100]
    assert "precious" not in json.dumps(run.facts)
