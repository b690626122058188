"""The public names, with Chainer and without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.chainer.scripts import run_script

WITHOUT = """
import sys
sys.modules["chainer"] = None  # as if it were not installed
import overlapiter
from overlapiter import *

help(overlapiter)
print(Staging, scatter_order)
try:
    overlapiter.OverlapIterator
except overlapiter.errors.NoChainerError as error:
    assert isinstance(error, ImportError)
    print(error)
"""


def test_without_chainer_the_iterator_says_what_to_do_and_all_the_rest_is_there(
    tmp_path: Path,
) -> None:
    done = run_script(tmp_path, WITHOUT)

    assert done.stderr == ""
    assert "class 'overlapiter.options.Staging'" in done.stdout
    message = done.stdout.splitlines()[-1]
    assert message.startswith("OverlapIterator, its extensions and converter")
    if sys.version_info >= (3, 12):
        assert "this is Python 3.1" in message
        assert "an environment with Python 3.11" in message
    else:
        assert "pip install --no-build-isolation chainer==7.8.1" in message


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mypy"), reason="needs mypy")
def test_a_type_checker_knows_the_names_and_no_others(tmp_path: Path) -> None:
    names = ["Staging", "Stagging", "torch.Loader", "mpi.train", "mpi.trian"]
    lines = ["import overlapiter", *(f"overlapiter.{name}" for name in names)]
    (tmp_path / "user.py").write_text("\n".join(lines))
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    environment = {**os.environ, "MYPYPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    wrong = re.findall(r"user.py:(\d): error: Module has no attribute", done.stdout)
    assert wrong == ["3", "4", "6"], done.stdout + done.stderr


@pytest.mark.skipif(not find_spec("chainer"), reason="needs Chainer")
def test_why_chainer_cannot_be_imported_is_told(tmp_path: Path) -> None:
    as_in_numpy_2 = "import numpy; del numpy.sctypes"
    done = run_script(tmp_path, f"{as_in_numpy_2}\nfrom overlapiter import OverlapIterator")

    message = done.stderr.splitlines()[-1]
    assert "NoChainerError: OverlapIterator" in message
    assert re.search(r"its import fails \(AttributeError.*sctypes.*\); install it with", message)
