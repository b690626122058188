"""The forkserver, started by hand before anything else."""

from __future__ import annotations

from pathlib import Path

from tests.chainer.scripts import run_script

#: A dataset that needs no Chainer says whether its file reader has it all the same.
WITNESS = """
import sys

class Witness:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return "chainer" in sys.modules, "witness_of_preload" in sys.modules
"""

PROGRAM = """
import sys
import psutil
{start}
from overlapiter.workers.start.launch import forkserver
before = forkserver._forkserver._forkserver_pid

import overlapiter
from witness import Witness

if __name__ == "__main__":
    with overlapiter.OverlapIterator(Witness(), 2, n_processes=1) as iterator:
        print(next(iterator)[0])
    print(before == forkserver._forkserver._forkserver_pid)
"""

START = """
import overlapiter.mpi
overlapiter.mpi.start_forkserver(preload=["witness_of_preload"])
overlapiter.mpi.start_forkserver()
assert not {"chainer", "mpi4py.MPI"} & sys.modules.keys()
"""


def test_workers_come_from_it_and_find_chainer_there(tmp_path: Path) -> None:
    (tmp_path / "witness.py").write_text(WITNESS)
    (tmp_path / "witness_of_preload.py").write_text("")

    ended = run_script(tmp_path, PROGRAM.format(start=START))

    assert (ended.stdout, ended.stderr) == ("(True, True)\nTrue\n", "")


AT_THE_TOP = """
import overlapiter, overlapiter.mpi, threading
from multiprocessing import forkserver
overlapiter.mpi.start_forkserver()
overlapiter.mpi.abort_on_failure()

class Witness:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return forkserver._forkserver._forkserver_pid, threading.excepthook.__module__

if __name__ == "__main__":
    assert threading.excepthook.__module__ == "overlapiter.mpi.failure"
    with overlapiter.OverlapIterator(Witness(), 2, n_processes=1) as iterator:
        print(next(iterator)[0])
"""


def test_at_the_top_of_a_script_that_workers_import_it_does_nothing_there(tmp_path: Path) -> None:
    ended = run_script(tmp_path, AT_THE_TOP)

    assert (ended.stdout, ended.stderr) == ("(None, '_thread')\n", "")


def test_without_it_workers_import_what_the_dataset_needs(tmp_path: Path) -> None:
    (tmp_path / "witness.py").write_text(WITNESS)

    ended = run_script(tmp_path, PROGRAM.format(start=""))

    assert (ended.stdout, ended.stderr) == ("(False, False)\nFalse\n", "")
