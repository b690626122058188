"""What is said of trainings with one bottleneck each: the cause, in words, and what to change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.claims.explained import JOBS, TimedFiles
from bench.slow.store import attach
from overlapiter.explain import Cause, Explanation
from tests.support.engine import engine_of

#: Of each cause: what the paragraph says of it, and of the change.
WORDS = {
    "store latency": ("its latency is the limit", "leave out reads_in_flight=2"),
    "store bandwidth": ("its bandwidth is the limit", "stage it before the job"),
    "store requests": ("number of requests that it serves at once", "stage it before the job"),
    "not staged": ("mostly for file readers that read the slow store", "stage the files"),
    "decoding": ("Decoding an example takes", "n_processes="),
    "trainer": ("Loading is not the bottleneck", ""),
    "directory too small": ("The staging directory is too small", "room for the whole data set"),
}
#: Of the published lengths, and of more files than are read by then; all are the same files.
SHARE, N_FILES = 0.6, 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source."""
    return tmp_path_factory.mktemp("source")


def explained(cause: str, folder: Path, directory: Path) -> Explanation:
    """Train, and return what is said of it."""
    job = JOBS[cause]
    if cause != "trainer":  # its first mini-batches are waited for, which must not count for much
        n_batches = round(SHARE * job.n_batches)
        job = dataclasses.replace(job, n_files=min(job.n_files, N_FILES), n_batches=n_batches)
    dataset = TimedFiles(job.files(folder), job.decode_seconds)
    with (
        job.store(folder) as store,
        engine_of(job, attach(dataset, store), folder, directory) as engine,
    ):
        job.train(engine)
        return engine.pipeline.explain()


@pytest.mark.parametrize("cause", JOBS)
def test_the_bottleneck_of_a_training_is_found_and_the_change_is_named(
    cause: str, folder: Path, tmp_path: Path
) -> None:
    reason, change = WORDS[cause]
    # Other work on this node may take what the bottleneck is to be; it does not always.
    for attempt in range(3):
        found = explained(cause, folder, tmp_path / str(attempt))
        if found.cause is Cause(cause) and change.lower() in found.text.lower():
            break
    if "leave them more cores" in found.change:
        pytest.skip("other work takes the cores of this node")

    assert found.cause is Cause(cause), found.text
    assert reason in found.text
    # On a node that is busy otherwise, or has one core, more readers are of no use.
    others = ("smaller images", "leave them more cores") if cause == "decoding" else ()
    assert any(words in found.text.lower() for words in (change.lower(), *others)), found.text
    assert found.text.startswith("The trainer waited for data ")
