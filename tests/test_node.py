"""Which ranks share a node: by the variables of each launcher, and by the hosts of all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapiter.node import (
    Host,
    Node,
    binding_words,
    node_among,
    node_from,
    program_words,
    set_node,
    share_of_cores,
    tasks_per_node,
    this_host,
    this_node,
)

CORES = tuple(range(8))
HOST = Host("gpu1", "boot-1", False, CORES)


@pytest.fixture(autouse=True)
def _unknown() -> Iterator[None]:
    """Begin and end without what another test found."""
    set_node(None)
    yield
    set_node(None)


# --- what runs ----------------------------------------------------------------------------------


WAIT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-u", "-X", "dev", "{script}", "--key=secret"], ["{script}"]),
        (["-u", "-m", "train", "--key=secret"], ["-m", "train"]),
        (["-c", WAIT, "secret"], ["-c"]),
    ],
)
def test_the_interpreters_options_are_no_program(
    tmp_path: Path, words: list[str], shown: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAIT)
    words, shown = ([word.format(script=script) for word in each] for each in (words, shown))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *words], cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        assert program_words(process.pid) == [sys.executable, *shown]
        process.communicate()


# --- from the launcher's variables ------------------------------------------------------------


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_NTASKS": "14",
    "SLURM_STEP_NUM_TASKS": "14",
    "SLURM_STEP_TASKS_PER_NODE": "4(x3),2",
    "SLURM_TASKS_PER_NODE": "4(x3),2",
    "SLURM_PROCID": "9",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "1",
}
#: What sbatch tells the script, and salloc its shell: no step, but tasks.
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "16",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_TASKS_PER_NODE": "4(x4)",
    "SLURM_NNODES": "4",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_TASK_PID": "4711",
    "ENVIRONMENT": "BATCH",
}
#: The shell that salloc starts on the node as a step of its own, with one task.
INTERACTIVE = BATCH | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
#: How mpiexec starts its own daemon on each node under Slurm: the ranks inherit these.
DAEMON = STEP | {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "5",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "4",
}
PBS = {"PBS_JOBID": "12.server", "PBS_NODEFILE": "/var/spool/pbs/aux/12", "PBS_TASKNUM": "1"}
PALS = PBS | {
    "PALS_RANKID": "5",
    "PALS_NODEID": "1",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "4",
}
#: As Lightning's own launcher sets them on one machine.
LIGHTNING = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "4711",
    "NODE_RANK": "0",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
}
CRAY_PMI = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"}


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(OPEN_MPI, id="Open MPI"),
        pytest.param(OPEN_MPI | DAEMON, id="Open MPI under Slurm"),
        pytest.param(OPEN_MPI | PBS, id="Open MPI under PBS"),
        pytest.param(HYDRA, id="MPICH or Intel MPI"),
        pytest.param(HYDRA | DAEMON, id="MPICH or Intel MPI under Slurm"),
        pytest.param(MVAPICH, id="MVAPICH"),
        pytest.param(PALS, id="PALS under PBS"),
        pytest.param(CRAY_PMI, id="Cray PMI"),
        pytest.param(LIGHTNING, id="Lightning on one machine"),
        pytest.param(
            LIGHTNING | {"MASTER_ADDR": "gpu0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            id="Lightning on several, and what the user adds",
        ),
        pytest.param(
            PALS
            | {"PALS_LOCAL_RANKID": "0", "PALS_LOCAL_SIZE": "1"}
            | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            id="torchrun, which PALS has started once for each node",
        ),
    ],
)
def test_the_launcher_tells_who_shares_the_node(environment: dict[str, str]) -> None:
    assert node_from(environment, HOST, lambda: 8) == Node("gpu1", 1, 4, cores=2)


@pytest.mark.parametrize(
    "more", [{}, {"PMI_RANK": "9", "PMI_SIZE": "14"}, {"PMIX_RANK": "9"}], ids=["", "PMI", "PMIx"]
)
@pytest.mark.parametrize(("node", "local_size"), [(0, 4), (2, 4), (3, 2)])
def test_srun_tells_who_shares_each_node(node: int, local_size: int, more: dict[str, str]) -> None:
    environment = STEP | {"SLURM_NODEID": str(node)} | more

    assert node_from(environment, HOST, lambda: 8) == Node("gpu1", 1, local_size, 8 // local_size)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no launcher"),
        pytest.param(BATCH, id="a batch script of Slurm"),
        pytest.param(INTERACTIVE, id="a shell of salloc on a node"),
        pytest.param(PBS, id="a batch script of PBS"),
        pytest.param({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, id="half of it is missing"),
        pytest.param(LIGHTNING | {"MASTER_ADDR": "gpu0"}, id="Lightning on several machines"),
        pytest.param(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "four"}, id="no number"),
        pytest.param(HYDRA | {"MPI_LOCALNRANKS": "1"}, id="a rank beyond the size"),
        pytest.param(HYDRA | {"MPI_LOCALRANKID": "-1"}, id="no rank"),
        pytest.param(STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x3"}, id="unreadable tasks"),
        pytest.param(STEP | {"SLURM_STEP_NUM_TASKS": "3"}, id="tasks of another step"),
        pytest.param(STEP | {"SLURM_NODEID": "4"}, id="a node beyond the step"),
        pytest.param(STEP | {"SLURM_LOCALID": "4"}, id="a task beyond the node"),
    ],
)
def test_what_is_uncertain_is_a_process_alone(environment: dict[str, str]) -> None:
    assert node_from(environment, HOST, lambda: 8) == Node("gpu1", cores=8)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4", [4]),
        ("2,1", [2, 1]),
        ("4(x3),2", [4, 4, 4, 2]),
        ("1,2(x2),3", [1, 2, 2, 3]),
        ("", []),
        ("4(x3),", []),
        ("4x3", []),
    ],
)
def test_slurms_short_form_is_read(text: str, sizes: list[int]) -> None:
    assert tasks_per_node(text) == sizes


@pytest.mark.parametrize(
    ("n_bound", "n_cores", "expected"),
    [
        (8, 8, 2),  # not bound: all ranks share all
        (2, 8, 2),  # bound, each to cores of its own
        (4, 8, 2),  # bound to a socket, two ranks each
        (1, 8, 1),  # bound to a core
        (2, 2, 1),  # more ranks than cores
    ],
)
def test_a_rank_takes_its_part_of_the_cores(n_bound: int, n_cores: int, expected: int) -> None:
    host = HOST._replace(cores=CORES[:n_bound])

    assert node_from(OPEN_MPI, host, lambda: n_cores).cores == expected


def test_a_process_alone_takes_the_cores_it_is_bound_to() -> None:
    assert node_from({}, HOST._replace(cores=CORES[:3]), lambda: 8).cores == 3


# --- this node --------------------------------------------------------------------------------


def test_this_node_is_found_without_changing_what_this_process_is_bound_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.sched_getaffinity(0)
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)

    node = this_node()

    assert (node.local_rank, node.local_size) == (1, 4)
    assert node.cores == max(1, min(len(before), (os.cpu_count() or 1) // 4))
    assert os.sched_getaffinity(0) == before


def test_what_somebody_knows_better_counts() -> None:
    better = Node("gpu9", 3, 8, 5)

    set_node(better)

    assert this_node() == better
    set_node(None)
    assert this_node().name != "gpu9"


def test_a_node_can_be_given_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = this_host()
    monkeypatch.setenv("OVERLAPITER_NODE", "a")

    named = this_host()

    assert this_node().name == "a"
    assert named.key != plain.key
    assert named.machine == plain.machine  # whose cores it still shares


# --- from all ranks ---------------------------------------------------------------------------


def test_ranks_are_grouped_by_the_node_they_run_on() -> None:
    hosts = [HOST._replace(node=name, machine=name) for name in ("b", "a", "b", "a", "b")]

    nodes = [node_among(rank, hosts) for rank in range(5)]

    expected = [("b", 0, 3, 2), ("a", 0, 2, 4), ("b", 1, 3, 2), ("a", 1, 2, 4), ("b", 2, 3, 2)]
    assert nodes == [Node(*each) for each in expected]


def test_machines_of_the_same_name_are_different_nodes() -> None:
    hosts = [HOST, HOST._replace(machine="boot-2")]

    assert [node_among(rank, hosts) for rank in range(2)] == [Node("gpu1", 0, 1, 8)] * 2


def test_named_nodes_on_one_machine_share_its_cores() -> None:
    hosts = [HOST._replace(node=name, is_named=True) for name in "aabb"]

    last = node_among(3, hosts)

    assert last == Node("b", 1, 2, 2)


def test_a_named_node_may_span_machines() -> None:
    hosts = [HOST._replace(node="a", machine=m, is_named=True) for m in ("boot-1", "boot-2")]

    assert node_among(1, hosts) == Node("a", 1, 2, cores=8)


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [
        pytest.param(CORES, [CORES] * 4, 2, id="all shared"),
        pytest.param((0, 1), [(0, 1), (2, 3)], 2, id="none shared"),
        pytest.param((0, 1, 2, 3), [(0, 1, 2, 3), (0, 1, 2, 3), (4, 5)], 2, id="some shared"),
        pytest.param((0, 1, 2), [(0, 1, 2), (2,)], 2, id="half a core is none"),
        pytest.param((0,), [(0,)] * 6, 1, id="at least one"),
        pytest.param((0, 1, 2), [(0, 1, 2)] * 3, 1, id="thirds make a whole"),
    ],
)
def test_a_core_that_k_ranks_may_use_counts_a_kth(
    own: tuple[int, ...], of_all: list[tuple[int, ...]], expected: int
) -> None:
    assert share_of_cores(own, of_all) == expected


def test_the_first_rank_of_a_machine_warns_if_half_of_its_cores_or_more_are_left_out() -> None:
    hosts = [HOST._replace(machine=m, cores=(core,)) for m in "ab" for core in (0, 1)]

    texts = [binding_words(rank, hosts, 4) for rank in range(4)]

    assert [bool(text) for text in texts] == [True, False, True, False]
    assert "binds the ranks on gpu1 to 2 of its 4 cores" in texts[0]
    assert binding_words(0, hosts, 3) == ""
