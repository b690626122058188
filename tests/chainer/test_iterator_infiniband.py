"""What makes the ranks safe on InfiniBand: no fork once MPI runs, and no MPI in their workers.

Every job of these tests is looked at from outside while it runs: no worker has a library of MPI in
its memory. The watch over forks is tested in test_fork_watch.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapiter import OverlapIterator
from overlapiter.errors import NoMpiError
from tests.chainer.fork_watch import CAN_FORBID
from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, Group, check_staged, run_groups, run_job
from tests.chainer.scripts import run_script

pytestmark = NEEDS_MPIEXEC


@pytest.mark.skipif(not CAN_FORBID, reason="the numbers of the system calls are not known")
def test_with_the_forkserver_before_mpi_the_kernel_may_forbid_processes_from_then_on(
    tmp_path: Path, image_folder: Path
) -> None:
    n_ranks = 3
    ended = run_job("rank_safety.py", n_ranks, tmp_path, "early", image_folder)

    assert ended.exit_status == 0, ended.output
    assert ended.results == n_ranks * [
        {"is right": [True] * 4, "same children": True, "copies": [], "starts": []}
    ]
    assert ended.n_looks > n_ranks
    check_staged(tmp_path / "staging", image_folder)


@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_rank_copies_its_memory_when_mpi_runs_first_and_the_forkserver_dies(
    tmp_path: Path, image_folder: Path, n_ranks: int
) -> None:
    ended = run_job("rank_safety.py", n_ranks, tmp_path, "late", image_folder)

    assert ended.exit_status == 0, ended.output
    assert ended.results == n_ranks * [
        {"is right": [True] * 5, "same children": False, "copies": [], "starts": []}
    ]
    assert ended.n_looks > n_ranks
    check_staged(tmp_path / "staging", image_folder)


# --- scripts that define the dataset ----------------------------------------------------------

#: How training scripts begin.
HEADS = {
    "the forkserver": """
        import overlapiter.mpi
        overlapiter.mpi.start_forkserver()
        from mpi4py import MPI
        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    """,
    "rank": """
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        rank, size = comm.Get_rank(), comm.Get_size()
        is_root = comm.rank == 0
        first = MPI.Op.Create(lambda a, b, _: a, commute=False)
    """,
    "chainermn": """
        import chainermn
        import chainermn.communicators.naive_communicator
        import mpi4py.MPI
        rank, size = mpi4py.MPI.COMM_WORLD.rank, mpi4py.MPI.COMM_WORLD.size
        chainermn.global_except_hook.add_hook()
    """,
    "not initialized": """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    """,
    "a class of communicators": """
        from mpi4py import MPI
        from mpi4py.MPI import COMM_WORLD, SUM, Comm
        class Ring(MPI.Intracomm):
            pass
        def next_of(comm: Comm) -> int:
            return (comm.rank + 1) % comm.size
        rank, size = COMM_WORLD.rank, (next_of(COMM_WORLD) - COMM_WORLD.rank) % 5 + 4
    """,
}

SCRIPT = """
import json, multiprocessing, os, sys
{head}
import overlapiter
from tests.chainer import fork_watch

class Witness:
    def __init__(self):
        self.op = SUM if "SUM" in globals() else None  # mpi4py's constants can be pickled

    def __len__(self):
        return 4

    def __getitem__(self, i):
        launcher = [name for name in os.environ if name.startswith(("PMIX_", "OMPI_", "PRTE_"))]
        with open("/proc/self/maps") as maps:
            return int(i), rank, size, launcher, "libmpi" in maps.read()

if __name__ == "__main__":
    fork_watch.watch()
    with overlapiter.OverlapIterator(Witness(), 2, shuffle=False, n_processes=1) as iterator:
        seen = [list(example) for _ in range(2) for example in next(iterator)]
    if "overlapiter.mpi" in sys.modules:  # what else comes from that forkserver is as safe
        from chainer.iterators import MultiprocessIterator
        multiprocessing.set_start_method("forkserver")
        theirs = MultiprocessIterator(Witness(), 2, shuffle=False, n_processes=1, shared_mem=9999)
        assert [list(example) for _ in range(2) for example in next(theirs)] == seen
        theirs.finalize()
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
    assert fork_watch.copies == []
    with open(f"rank-{{rank}}.json", "w") as file:
        json.dump(seen, file)
    if not MPI.Is_finalized():
        MPI.Finalize()
"""


def test_a_script_that_begins_with_mpi_may_define_the_dataset(tmp_path: Path) -> None:
    groups = []
    for number, head in enumerate(HEADS.values()):
        path = tmp_path / f"script{number}.py"
        path.write_text(SCRIPT.format(head="\n".join(line[8:] for line in head.splitlines())))
        groups.append(Group(path, 1))

    ended = run_groups(groups, tmp_path)

    assert ended.exit_status == 0, ended.output
    n_ranks = len(HEADS)
    assert ended.results == [
        [[i, rank, n_ranks, [], False] for i in range(4)] for rank in range(n_ranks)
    ]
    assert ended.n_looks > 0


COMMUNICATING = """
    import overlapiter
    from mpi4py import MPI
    seed = MPI.COMM_WORLD.bcast(1)

    class Numbers:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return i

    if __name__ == "__main__":
        next(overlapiter.OverlapIterator(Numbers(), 2, n_processes=1))
"""


def test_a_script_that_communicates_where_workers_import_it_is_told_so(tmp_path: Path) -> None:
    launcher = ("mpiexec", "--allow-run-as-root", "-n", "1")  # which removes what MPI leaves
    ended = run_script(tmp_path, COMMUNICATING, launcher=launcher)

    assert ended.returncode != 0
    assert "NoMpiError: MPI.COMM_WORLD.bcast was called in a worker process" in ended.stderr
    assert 'below `if __name__ == "__main__":`' in ended.stderr
    assert "seed = MPI.COMM_WORLD.bcast(1)" in ended.stderr


class Communicating:
    """Asks the other ranks for each example."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        from mpi4py import MPI

        return MPI.COMM_WORLD.bcast(i)


def test_a_dataset_that_communicates_is_told_so_by_the_first_mini_batch() -> None:
    with (
        OverlapIterator(Communicating(), 2, n_processes=1) as iterator,
        pytest.raises(NoMpiError, match=r"MPI\.COMM_WORLD\.bcast was called in a worker process"),
    ):
        next(iterator)
