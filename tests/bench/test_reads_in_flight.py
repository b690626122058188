"""The benchmark of reads in flight, small: it measures and summarizes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench import plan
from bench.claims import staging


@pytest.mark.slow  # the tuner has tests of its own
def test_a_small_run_gives_a_table_and_a_file(tmp_path, capsys):
    out = tmp_path / "reads.json"
    words = ["--quick", "--seconds", "99", "--local", str(tmp_path), "--out", str(out)]
    assert plan.run(plan.named("reads-in-flight"), words) == 0
    assert "self-tuned" in capsys.readouterr().out
    result = json.loads(out.read_text())
    settings = [
        (p["reads_in_flight"], p["runs"][0]["statistics"]["files_staged"]) for p in result["points"]
    ]
    assert settings == [(None, 320), (8, 320)]
    assert str(tmp_path) not in out.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["reads.json"]


def test_the_rate_is_that_of_the_second_half_and_the_time_that_until_it_is_reached():
    slow, fast = np.arange(0, 2, 0.1), np.arange(2, 8, 0.01)  # mini-batches of 32
    taken_at = np.concatenate([slow, fast])
    found = staging.facts(taken_at, [64] * len(slow) + [128] * len(fast), 32)
    assert found["files_per_second"] == pytest.approx(3200, rel=0.01)
    assert found["seconds_to_90_percent"] == pytest.approx(2.0, abs=0.11)
    assert found["reads"] == 128
    assert found["first_batch_seconds"] == 0.0
