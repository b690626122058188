"""Under mpiexec: no rank forks, and no worker takes part in MPI."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.chainer.scripts import run_script

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec"),
]

LAUNCHER = ("mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "2")

#: What a file reader sees of MPI.
MODULE = """
import ctypes, os

class Witness:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        rank = [n for n in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK") if getenv(n.encode())]
        prefixes = ("PMIX_", "OMPI_", "PRTE_", "PMI_")
        rank += [name for name in os.environ if name.startswith(prefixes)]
        from mpi4py import MPI
        return i, rank, MPI.Is_initialized()
"""

USE = """
import os
import overlapiter

forks = []
os.register_at_fork(before=lambda: forks.append("fork"))

def use(comm):
    it = overlapiter.OverlapIterator(Witness(), 4, shuffle=False, n_processes=2)
    for _ in range(4):
        for example in next(it):
            assert example[1:] == ([], False), example
        comm.Barrier()
    assert comm.allreduce(comm.rank + 1) == 3
    assert "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ
    it.finalize()
    assert not forks
    print("fine", comm.rank, flush=True)
"""

BEFORE = """
from mpi4py import MPI
{dataset}
{use}
if __name__ == "__main__":
    use(MPI.COMM_WORLD)
"""

AFTER = """
import mpi4py
mpi4py.rc.initialize = False
{dataset}
{use}
if __name__ == "__main__":
    first = overlapiter.OverlapIterator(Witness(), 4, shuffle=False, n_processes=1)
    next(first)
    from mpi4py import MPI
    MPI.Init()
    use(MPI.COMM_WORLD)
    assert next(first)[0][1:] == ([], False)
    del first
    MPI.Finalize()
"""


@pytest.mark.slow  # test_iterator_infiniband.py has the same for scripts of more kinds
@pytest.mark.parametrize(
    ("start", "home"),
    [(BEFORE, "main"), (BEFORE, "module"), (AFTER, "main")],
    ids=["MPI before", "MPI before, dataset in a module", "MPI after"],
)
def test_file_readers_see_nothing_of_mpi(tmp_path: Path, start: str, home: str) -> None:
    (tmp_path / "witness.py").write_text(MODULE)
    dataset = MODULE if home == "main" else "from witness import Witness"

    ended = run_script(tmp_path, start.format(dataset=dataset, use=USE), launcher=LAUNCHER)

    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["fine 0", "fine 1"]


SYNCHRONIZED = """
import warnings
warnings.simplefilter("ignore")
import chainermn, numpy as np, overlapiter
from mpi4py import MPI
from tests.chainer.iterator_datasets import Pixels, indices_of

if __name__ == "__main__":
    comm = chainermn.create_communicator("naive")
    np.random.seed(comm.rank)
    it = chainermn.iterators.create_synchronized_iterator(
        overlapiter.OverlapIterator(Pixels(6), 3, n_processes=1), comm)
    mine = [indices_of(next(it)) for _ in range(6)]
    everybodys = comm.mpi_comm.allgather(mine)
    assert everybodys[0] == everybodys[1], everybodys
    part = chainermn.scatter_dataset(Pixels(6), comm, shuffle=True, seed=0)
    own = overlapiter.OverlapIterator(part, 3, repeat=False, n_processes=1)
    taken = comm.mpi_comm.allgather(sorted(sum((indices_of(batch) for batch in own), [])))
    assert sorted(taken[0] + taken[1]) == list(range(6)), taken
    print("fine", comm.rank, flush=True)
"""


@pytest.mark.slow  # test_iterator_chainermn.py has the same on 4 ranks
def test_chainermns_synchronized_iterator_agrees_in_every_epoch_and_its_parts_are_disjoint(
    tmp_path: Path,
) -> None:
    ended = run_script(tmp_path, SYNCHRONIZED, launcher=LAUNCHER)

    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["fine 0", "fine 1"]
