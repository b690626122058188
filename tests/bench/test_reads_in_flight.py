"""The benchmark of reads in flight, small: it measures, summarizes and draws."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.claims import reads_in_flight
from bench.harness import claim


@pytest.mark.slow  # the tuner has tests of its own
def test_a_small_run_gives_a_table_a_file_and_a_figure(tmp_path, capsys):
    out = tmp_path / "reads.json"
    words = ["--quick", "--seconds", "99", "--local", str(tmp_path), "--out", str(out)]
    assert claim.run("reads-in-flight", words) == 0
    printed = capsys.readouterr().out
    assert "self-tuned" in printed
    result = json.loads(out.read_text())
    settings = [
        (point["reads_in_flight"], point["n_prefetchers"], point["runs"][0]["files_staged"])
        for point in result["points"]
    ]
    assert settings == [(None, None, 640), (8, None, 640), (None, 1, 640)]
    assert str(tmp_path) not in out.read_text()
    assert (tmp_path / "reads.png").stat().st_size > 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reads.json", "reads.png"]


def test_the_rate_is_that_of_the_second_half_and_the_time_that_until_it_is_reached():
    slow, fast = np.arange(0, 2, 0.1), np.arange(2, 8, 0.01)  # mini-batches of 32
    run = {
        "taken_at": [*slow, *fast],
        "reads": [64] * len(slow) + [128] * len(fast),
        "cpu_us_per_file": 100.0,
    }
    summary = reads_in_flight.summarize([run])
    assert summary["files_per_second"]["median"] == pytest.approx(3200, rel=0.01)
    assert summary["seconds_to_90_percent"]["median"] == pytest.approx(2.0, abs=0.11)
    assert summary["reads"]["median"] == 128
    assert summary["first_batch_seconds"]["median"] == 0.0
