"""What lets a training run in the process of the tests."""

from __future__ import annotations

import pytest

from overlapiter.mpi.training.curves import draw


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have matplotlib open its fonts, which it keeps open."""
    path = tmp_path_factory.mktemp("fonts") / "curves.png"
    draw([{"epoch": 1, "loss": 1.0}], str(path), print)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no curves of a run, which takes longer than the run."""
    monkeypatch.setattr("overlapiter.mpi.training.outputs.draw", lambda *_: None)
