"""Bytes of the store are changed at random, and every byte that is read is right."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from overlapiter.store.generation import generation_of, index_path
from tests.store.stores import made_store, n_right, stage


def damages(directory: Path, n_trials: int, seed: int) -> int:
    """Run the harness in a process that never opens an index; return how much it damaged."""
    command = [sys.executable, "-m", "tests.store.damage"]
    options = ["--trials", f"{n_trials}", "--seed", f"{seed}"]
    environment = {**os.environ, "TMPDIR": str(directory)}
    command += options
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.fullmatch(r"(\d+) damages, 0 trials went wrong\n", done.stdout)
    assert counts, done.stdout
    return int(counts[1])


def test_hundreds_of_random_damages_give_no_wrong_byte(tmp_path):
    assert damages(tmp_path, 20, seed=0) == 200


@pytest.mark.slow
@pytest.mark.timeout(1500)  # of a thousand trials
def test_thousands_of_random_damages_give_no_wrong_byte(tmp_path):
    assert damages(tmp_path, 1000, seed=1000) == 10_000


def test_a_memory_file_of_the_index_that_is_cut_costs_a_process_and_no_file(directory, files, act):
    def prefetcher(run):
        faulthandler.disable()  # it need not say that it dies
        store = made_store(directory, run)
        stage(store, files, files.paths[:20])
        yield
        with contextlib.suppress(OSError):
            stage(store, files, files.paths[20:])
        yield n_right(store, files)

    workers = [act(lambda run=run: prefetcher(run)) for run in range(2)]
    for worker in workers:
        worker.step()
    os.truncate(index_path(generation_of(str(directory))) + "-shm", 0)
    for worker in workers:
        with contextlib.suppress(EOFError):  # it has died of SIGBUS
            worker.step()
        worker.kill()
    later = act(lambda: prefetcher(3))
    later.step()
    assert later.step() == len(files.paths)
