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
    command = [sys.executable, "-m", "bench", "reads-in-flight", "--local", str(tmp_path)]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL) as process:
        while not [*tmp_path.glob("*/fresh-*/*")]:  # until a run has begun to stage
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
    assert process.returncode in (128 + number, -number)
    assert [*tmp_path.iterdir()] == []
