"""The benchmarks of examples in memory and of starting up, on few examples."""

from __future__ import annotations

import pytest

from bench.claims import in_memory
from bench.harness import claim, isolated
from bench.harness.machine import is_installed
from bench.loaders.run import run_loader
from bench.loaders.spec import RunSpec


@pytest.mark.parametrize(
    "loader", ["overlap", "multiprocess", "control", "overlap-torch-unlocked", "torch-unlocked"]
)
def test_the_cost_of_a_loader_is_measured_and_its_examples_are_right(loader):
    if "torch" in loader and not is_installed("torch"):
        pytest.skip("PyTorch is not installed")
    request = {"loader": loader, "examples": 8, "side": 16, "batch_size": 4, "readers": 2}
    request |= {"device": "cpu", "batches": 5, "compute_ms": 0.0}
    answer = isolated.call(in_memory.take, request)
    assert answer["is_same"]
    assert answer["batch_ms"] > 0
    assert len(answer["step_ms"]) == 5


@pytest.mark.parametrize("loader", ["overlap", "slow"])
def test_the_memory_of_every_kind_of_process_is_measured_over_a_list_of_any_length(
    loader, image_folder, tmp_path
):
    pairs, root, staging = image_folder / "list.txt", image_folder, tmp_path / "staging"
    pairs, root, staging = map(str, (pairs, root, staging))
    spec = RunSpec(loader, pairs, 100, root, staging, order="own", n_batches=3, n_readers=3)
    found = isolated.call(run_loader, spec)["private_bytes"]
    assert {"reader", "trainer"} <= set(found)
    assert 1 <= len(found["reader"]) <= 3
    assert min(min(sizes) for sizes in found.values()) > 0


def test_a_run_that_fails_says_which():
    with pytest.raises(isolated.RunFailedError, match=r"bench\.claims\.in_memory"):
        isolated.call(in_memory.take, {})


def test_on_a_gpu_the_loaders_are_compared_beside_a_step_of_any_length(monkeypatch):
    def run(points, *_arguments, **_common):
        for point in points:
            point["runs"] = [{"batch_ms": 2.0, "trainer_cpu_ms": 1.0}]

    there = {"found": ["torch", "cupy"], "gpu": "any"}
    monkeypatch.setattr("bench.harness.isolated.call", lambda *_arguments: there)
    monkeypatch.setattr(isolated, "call_in_turns", run)
    options = claim.parse("in-memory", ["--device", "gpu", "--compute-ms", "10"])
    result = in_memory.measure(options)
    found = claim.with_targets({"benchmark": "in-memory", **result})["targets"]
    assert [target["what"] for target in found] == [wanted[0] for wanted in in_memory.TARGETS]
