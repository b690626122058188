"""What a supervisor is told, where the test does not care."""

from __future__ import annotations

import dataclasses
from typing import Any

from overlapiter.workers.plan import SupervisorPlan

_PLAN = SupervisorPlan(
    n_readers=1,
    n_build_ahead=1,
    batch_size=1,
    dataset_size=1,
    index_type="p",
    seed=None,
    is_skipping=False,
    max_parts_per_reader=None,
    imports=(),
)


def plan_of(**more: Any) -> SupervisorPlan:
    """Return the plan of an iterator over one example, changed."""
    return dataclasses.replace(_PLAN, **more)
