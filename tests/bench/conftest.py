"""What the tests of benchmarks share."""

from __future__ import annotations

import pytest

from bench.harness import turns


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have benchmarks touch little memory before a run: no figure counts here."""
    monkeypatch.setattr(turns, "USED_BYTES", 1 << 20)
