"""What a benchmark leaves behind that is ended before its time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.harness.isolated import CHECKOUT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_removes_its_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["reads-in-flight", "--files", "4000", "--local", str(tmp_path)]
    command = [sys.executable, "-m", "bench", *words]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL) as process:
        while not [*tmp_path.glob("*/fresh-*/*")]:  # until a run has begun to stage
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
    assert process.returncode in (128 + number, -number)
    assert [*tmp_path.iterdir()] == []


def test_all_experiments_end_with_the_one_that_is_being_measured(tmp_path: Path) -> None:
    words = ["--all", "--into", str(tmp_path / "own"), "--quick", "--local", str(tmp_path)]
    command, pipe = [sys.executable, "-m", "bench", *words], subprocess.PIPE
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=pipe, text=True) as process:
        try:
            assert any("runs follow" in line for line in process.stderr)
            process.terminate()
            told = process.communicate(timeout=60)[1]
        finally:
            process.send_signal(signal.SIGINT)  # if it goes on
    assert process.returncode == 128 + signal.SIGTERM
    assert "=== 2 of" not in told
