"""What the forkserver imports of Chainer, and what is loaded of it when a dataset uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chainer.scripts import run_script


@pytest.mark.parametrize(
    "use",
    [
        "import chainer.functions as F; F.relu, F.array.reshape, F.math.basic_math",
        "from chainer.functions.array import broadcast; chainer.links.Linear(3, 2)",
        "from chainer.training import extensions; chainer.optimizers.SGD, chainer.serializers",
        "from PIL import ExifTags, Image; assert Image.ExifTags.TAGS[ExifTags.Base.Orientation]",
        "import filelock, scipy.ndimage, scipy.io; filelock.FileLock, scipy.io.loadmat",
    ],
)
def test_what_was_left_out_is_loaded_when_it_is_used(tmp_path: Path, use: str) -> None:
    if "scipy" in use:
        pytest.importorskip("scipy")
    body = f"""
import os, sys
os.environ["OVERLAPITER_WORLD"] = "0/1"  # as in a worker process
from overlapiter.chainer import preload
import chainer, numpy
print("chainer.functions.activation" in sys.modules, chainer.Variable(numpy.ones(2, "f"))[0] + 1)
{use}
assert not hasattr(chainer.functions, "nothing")
"""
    assert run_script(tmp_path, body).stdout == "False variable(2.)\n"


def test_the_forkserver_starts_before_the_rest_is_imported(tmp_path: Path) -> None:
    body = """
import sys
import overlapiter

overlapiter.OverlapIterator
print({f"overlapiter.{name}" for name in ("pipeline", "planning", "store")} & sys.modules.keys())
if __name__ == "__main__":
    with overlapiter.OverlapIterator([1, 2], 2, shuffle=False, n_processes=1) as iterator:
        print(next(iterator))
"""
    assert run_script(tmp_path, body).stdout == "set()\n[1, 2]\n"


def test_chainer_is_configured_in_a_worker_that_imports_it_for_an_example(tmp_path: Path) -> None:
    body = """
import chainer
import overlapiter
from tests.chainer.iterator_datasets import Configured

if __name__ == "__main__":
    chainer.global_config.augment = 5
    with overlapiter.OverlapIterator(Configured(), 2, shuffle=False, n_processes=1) as iterator:
        print(next(iterator)[1][1:])
"""
    assert run_script(tmp_path, body).stdout == "(1, 5)\n"
