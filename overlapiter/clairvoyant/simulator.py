"""Runs policies on a scenario. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .policies import POLICIES
from .workload import Scenario


def simulate(
    scenario: Scenario,
    seed: int,
    policies: Iterable[str] = tuple(POLICIES),
    begin: Callable[[str], object] = lambda _name: None,
) -> dict[str, float | None]:
    """Return the seconds that a whole run takes, by policy; None where one cannot run.

    Args:
        scenario: The scenario.
        seed: Sizes and orders follow from it.
        policies: Some of ``POLICIES``.
        begin: Called with the name of each before it runs.
    """
    workload = scenario.workload(seed)
    seconds = {}
    for name in policies:
        begin(name)
        seconds[name] = POLICIES[name](scenario.system, workload)
    return seconds
