"""The benchmarks of examples in memory and of starting up, on few examples."""

from __future__ import annotations

import pytest

from bench import isolated
from bench.photographs import make_photographs


@pytest.mark.parametrize("loader", ["overlap", "multiprocess"])
def test_the_cost_of_a_loader_is_measured_and_its_examples_are_right(loader):
    request = {"loader": loader, "n_examples": 8, "batch_size": 4, "n_readers": 2}
    request |= {"n_prefetch": 1, "n_batches": 5, "compute_ms": 0.0}
    answer = isolated.call("bench.in_memory", request)
    assert answer["is_same"]
    assert answer["batch_ms"] > 0
    assert len(answer["step_ms"]) == 5


@pytest.mark.parametrize("loader", ["overlap", "multiprocess"])
def test_every_file_reader_is_found_when_memory_is_measured(loader, tmp_path):
    made = make_photographs(tmp_path / "images", 4, n_processes=1)
    (tmp_path / "staging").mkdir()
    request = {"loader": loader, "n_readers": 3, "n_prefetchers": 1, "n_pairs": 100}
    request |= {"pairs": str(made.root / "pairs.txt"), "root": str(made.root)}
    request |= {"staging": str(tmp_path / "staging"), "n_batches": 3}
    answer = isolated.call("bench.startup", request)
    assert len(answer["reader_private_bytes"]) == 3
    assert min(answer["reader_private_bytes"]) > 0


def test_a_run_that_fails_says_which():
    with pytest.raises(isolated.RunFailedError, match=r"bench\.in_memory"):
        isolated.call("bench.in_memory", {})
