"""The stand-in for MPI in workers: a script's top runs on it, and nothing communicates."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

import pytest

from overlapiter.errors import NoMpiError
from overlapiter.workers.start import no_mpi
from overlapiter.workers.start.launch import launcher_variables
from tests.chainer.scripts import ENVIRONMENT


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, in the third of four ranks."""
    monkeypatch.setenv(no_mpi.WORLD_VARIABLE, "2/4")
    module = no_mpi._Mpi("mpi4py.MPI")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    return module


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any launcher, for this process without MPI."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    for name in (*launcher_variables(), no_mpi.WORLD_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# --- what it tells ----------------------------------------------------------------------------


def test_it_tells_the_rank_and_the_size_of_the_trainer(mpi: Any) -> None:
    assert (mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()) == (2, 4)
    assert (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size) == (2, 4)
    assert (mpi.COMM_SELF.rank, mpi.COMM_SELF.size) == (0, 1)


def test_it_says_that_mpi_is_not_running(mpi: Any) -> None:
    assert mpi.Init_thread(mpi.THREAD_MULTIPLE) == mpi.THREAD_MULTIPLE
    assert not mpi.Is_initialized()
    assert not mpi.Is_finalized()
    assert "worker" in mpi.Get_library_version()


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, "0/1"),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "3"}, "3/8"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "1/2"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "16"}, "0/16"),
        ({"SLURM_PROCID": "0"}, "0/1"),  # a job script, not a rank
        ({"PMIX_RANK": "5"}, ""),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4"}, "2/4"),
        ({"PALS_RANKID": "1"}, ""),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ""),
    ],
)
def test_before_mpi_runs_the_launcher_tells_the_world(
    alone: pytest.MonkeyPatch, variables: dict[str, str], world: str
) -> None:
    for name, value in variables.items():
        alone.setenv(name, value)

    assert no_mpi.world_of_this_process() == world


def test_a_rank_that_nobody_told_is_not_made_up(alone: pytest.MonkeyPatch, mpi: Any) -> None:
    alone.setenv(no_mpi.WORLD_VARIABLE, "")

    with pytest.raises(NoMpiError, match="Get_rank"):
        mpi.COMM_WORLD.Get_rank()


# --- what may be named and what may be called -------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "COMM_WORLD.bcast(1)",
        "COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)",
        "COMM_WORLD.Dup()",
        "COMM_WORLD.Abort(1)",
        "COMM_WORLD.group.Get_size()",
        "COMM_SELF.Spawn('program')",
        "COMM_NULL.Get_rank()",
        "Comm.Get_parent()",
        "Win.Allocate(8)",
        "File.Open(MPI.COMM_WORLD, 'name', MPI.MODE_CREATE | MPI.MODE_WRONLY)",
        "Open_port()",
    ],
)
def test_what_would_communicate_is_refused_by_name(mpi: Any, call: str) -> None:
    with pytest.raises(NoMpiError, match="worker processes have no MPI") as caught:
        eval(f"MPI.{call}", {"MPI": mpi})

    assert caught.value.name == f"MPI.{call.partition('(')[0]}"


def test_what_is_local_can_be_called(mpi: Any) -> None:
    mpi.Op.Create(max, commute=True)
    mpi.BYTE.Create_contiguous(4).Commit()
    mpi.pickle.__init__(pickle.dumps, pickle.loads)
    assert mpi._typedict["f"] is mpi._typedict["f"]
    assert mpi.Wtime() <= time.monotonic()
    mpi.Finalize()


def test_types_are_types(mpi: Any) -> None:
    class Tree(mpi.Intracomm):
        pass

    assert isinstance(mpi.COMM_WORLD, mpi.Intracomm)
    assert isinstance(mpi.COMM_WORLD, mpi.Comm)
    assert issubclass(Tree, mpi.Comm)
    assert isinstance(mpi.Status(), mpi.Status)
    assert not isinstance(mpi.SUM, mpi.Comm)
    assert issubclass(mpi.Exception, RuntimeError)


@pytest.mark.parametrize("name", ["COMM_WORLD", "SUM", "FLOAT"])
def test_constants_in_a_pickled_dataset_are_the_constants_here(mpi: Any, name: str) -> None:
    sent = f"cmpi4py.MPI\n{name}\n.".encode()  # as mpi4py pickles them

    assert pickle.loads(sent) is getattr(mpi, name)
    assert pickle.loads(pickle.dumps(getattr(mpi, name))) is getattr(mpi, name)


# --- in a process -----------------------------------------------------------------------------

#: Modules that import MPI, ChainerMN's communicators among them.
IMPORTERS = "import mpi4py.futures, mpi4py.util.dtlib"
if find_spec("chainermn"):
    IMPORTERS += ", chainermn.communicators.naive_communicator"

IMPORTS = """
import sys
{before}
from overlapiter.workers.start import begin_preload
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
{imports}
with open("/proc/self/maps") as file:
    mapped = [line for line in file if "libmpi" in line or "mpi4py" in line]
print(type(MPI).__name__, MPI is sys.modules["mpi4py.MPI"], bool(mapped))
"""


@pytest.mark.parametrize(
    ("before", "imports", "variables", "expected"),
    [
        ("", IMPORTERS, {}, "_Mpi True False"),
        ("from mpi4py import MPI", "", {"MPI4PY_RC_INITIALIZE": "0"}, "_Mpi True True"),
        ("", "", {no_mpi.OPT_OUT_VARIABLE: "1"}, "module True True"),
    ],
    ids=["nothing of MPI", "MPI was there before", "opted out"],
)
def test_a_process_imports_it_for_mpi4py(
    before: str, imports: str, variables: dict[str, str], expected: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(before=before, imports=imports)],
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ended.stdout.strip() == expected, ended.stderr
