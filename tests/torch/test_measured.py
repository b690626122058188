"""Runs of ``overlapiter.torch.DataLoader`` in a benchmark."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bench.harness import isolated
from bench.loaders.run import run_loader
from bench.loaders.spec import RunSpec


def test_a_run_has_the_prefetchers_and_the_reads_in_flight_that_are_asked_for(
    image_folder: Path, tmp_path: Path
) -> None:
    place = str(image_folder / "list.txt"), 64, str(image_folder), str(tmp_path / "staged")
    spec = RunSpec("overlap-torch", *place, batch_size=4, n_batches=3)
    asked = {"n_prefetchers": 3, "reads_in_flight": 6}
    found = isolated.call(run_loader, dataclasses.replace(spec, **asked))["statistics"]
    assert found["n_prefetchers"] == 3
    assert found["reads_in_flight"] in (2, 4, 6)  # of those that have begun
