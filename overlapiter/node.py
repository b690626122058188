"""Which ranks share this node, and which part of its cores each of them takes.

Without MPI the variables that MPI launchers set tell it; :mod:`overlapiter.mpi` asks all ranks and
replaces that. If the variables are incomplete, the process counts as alone on its node: a wrong
part costs speed only, and MPI corrects it.

Source: the variables are those of Open MPI 5 ("Environment variables set for MPI applications"),
of Hydra, which MPICH and Intel MPI share, of MVAPICH2, of Cray's PALS and PMI, of torchrun, of
Lightning's own launcher (_SubprocessScriptLauncher), and of srun(1).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

#: Replaces the host name as the name of a process's node, for several "nodes" on one machine.
NODE_VARIABLE = "OVERLAPITER_NODE"

#: Identifies the running kernel; host names are not unique.
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

#: The launchers' variables for local rank and local size. What may have started another launcher,
#: once for each node, comes after that one: MPI's after torchrun's, Slurm's after all of these.
_LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)
#: Lightning's launcher tells only how many ranks the job has. If they meet at a loopback address,
#: all of them share this machine.
_LIGHTNING = ("LOCAL_RANK", "WORLD_SIZE")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
#: One process: local rank and local size.
_ALONE = (0, 1)
#: The launchers' variables for rank and size among all processes; some tell the rank alone.
_WORLDS = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "",
    "PMI_RANK": "PMI_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "PALS_RANKID": "",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
}
#: What torchrun sets: not in the table above, since its processes are no ranks of MPI. RANK alone
#: may mean anything.
_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}


@dataclasses.dataclass(frozen=True)
class Node:
    """The node of this process, and this process's part of it."""

    name: str  # name of the node, for people
    local_rank: int = 0  # rank of this process among those of its node, from 0
    local_size: int = 1  # ranks on this node
    cores: int = 1  # cores for this rank and its workers, at least 1


class Host(NamedTuple):
    """Where a rank runs, as it tells the other ranks."""

    node: str  # name of its node
    machine: str  # identifies the running kernel; the ranks of one machine share its cores
    is_named: bool  # whether the user named the node; then ranks with that name share a node
    cores: tuple[int, ...]  # the cores that the rank may use

    @property
    def key(self) -> tuple[str, str]:
        """Equal for two ranks if, and only if, they share a node."""
        return self.node, "" if self.is_named else self.machine


_found: Node | None = None


def set_node(node: Node | None) -> None:
    """Replace what :func:`this_node` returns; None for what the launcher's variables say."""
    global _found
    _found = node


def this_node() -> Node:
    """Return the node of this process. Costs some system calls; asks no other process."""
    return _found or node_from(os.environ, this_host(), count_cores)


def this_host() -> Host:
    """Return where this process runs."""
    name = os.environ.get(NODE_VARIABLE, "")
    return Host(
        name or socket.gethostname(),
        kernel_text(_BOOT_ID_PATH) or socket.gethostname(),
        bool(name),
        tuple(sorted(os.sched_getaffinity(0))),
    )


def kernel_text(path: str) -> str:
    """Return what the kernel tells in a file, stripped; empty where it tells nothing."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def program_words(pid: int) -> list[str]:
    """Return what runs in a process: the interpreter, without its options, and the script.

    ``-m`` and the module, or ``-c``, may stand in its place. Further words may be private. Nothing
    but an empty text is known of a process that has ended.
    """
    line = b""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        line = file.read()
    interpreter, *words = os.fsdecode(line).split("\0")[:-1] or [""]
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-c":
            return [interpreter, option]
        if option == "-m":
            return [interpreter, option, *words[:1]]
        if option in ("-W", "-X"):  # its value is the next word
            words = words[1:]
    return [interpreter, *words[:1]]


def launched_rank() -> int | None:
    """Return the rank that the launcher has given this process; None where it tells none."""
    told = [os.environ.get(name, "") for name in _WORLDS]
    if os.environ.keys() >= _TORCHRUN:  # mpiexec or srun may have started it, once for each node
        told.insert(0, os.environ["RANK"])
    if os.environ.get("MASTER_ADDR") in _LOOPBACK:  # Lightning, on one machine
        told.append(os.environ.get("LOCAL_RANK", ""))
    return next((int(text) for text in told if text.isdecimal()), None)


def launched_world() -> str:
    """Return ``rank/size`` by the launcher's variables: "" without a size, 0/1 without both."""
    found = {rank: os.environ.get(size) for rank, size in _WORLDS.items() if rank in os.environ}
    told = [f"{os.environ[rank]}/{size}" for rank, size in found.items() if size is not None]
    if told or found.keys() <= {"SLURM_PROCID"}:  # which a job script has, too, without being one
        return told[0] if told else "0/1"
    return ""


def count_cores() -> int:
    """Return how many cores the job may use on this machine; this rank may be bound to fewer."""
    every = range(os.cpu_count() or 1)
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, every)  # the kernel leaves out what the control group forbids
    except OSError:
        return len(every)
    try:
        return len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, own)


# --- from the launcher's variables ------------------------------------------------------------


def node_from(environment: Mapping[str, str], host: Host, count_all: Callable[[], int]) -> Node:
    """Return the node of a process by the variables of its launcher.

    ``count_all`` tells how many cores of the node the job may use; it is called for several ranks.
    """
    rank, size = _launched(environment)
    cores = len(host.cores)
    if size > 1:  # a rank that is not bound takes an even part
        cores = max(1, min(cores, count_all() // size))
    return Node(host.node, rank, size, cores)


def _launched(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return local rank and local size."""
    is_one_machine = environment.get("MASTER_ADDR") in _LOOPBACK
    for rank_name, size_name in (*_LAUNCHERS, *[_LIGHTNING] * is_one_machine):
        rank, size = _count(environment, rank_name), _count(environment, size_name)
        if 0 <= rank < size:
            return rank, size
    return _launched_by_slurm(environment)


def _launched_by_slurm(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the same by the variables that srun sets; a batch script does not have all of them."""
    if "SLURM_STEP_ID" not in environment and "SLURM_STEPID" not in environment:
        return _ALONE
    sizes = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    rank, index = _count(environment, "SLURM_LOCALID"), _count(environment, "SLURM_NODEID")
    is_sound = 0 <= index < len(sizes) and 0 <= rank < sizes[index]
    if not is_sound or _count(environment, "SLURM_STEP_NUM_TASKS") not in (-1, sum(sizes)):
        return _ALONE
    return rank, sizes[index]


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node from Slurm's short form, ``4(x3),2``; [] for other text."""
    matches = [_TASKS.fullmatch(part) for part in text.split(",")]
    sizes: list[int] = []
    for match in matches:
        if match is None:
            return []
        sizes += [int(match[1])] * int(match[2] or 1)
    return sizes


def _count(environment: Mapping[str, str], name: str) -> int:
    """Return a variable's value; -1 if it is missing or not a count."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else -1


# --- from all ranks ---------------------------------------------------------------------------


def node_among(rank: int, hosts: Sequence[Host]) -> Node:
    """Return a rank's node by where each rank runs. Pure."""
    own = hosts[rank]
    local = [i for i, host in enumerate(hosts) if host.key == own.key]
    neighbours = [host.cores for host in hosts if host.machine == own.machine]
    n_cores = share_of_cores(own.cores, neighbours)
    return Node(own.node, local.index(rank), len(local), n_cores)


def share_of_cores(own: Collection[int], of_all: Sequence[Collection[int]]) -> int:
    """Return how many cores a rank takes: one that k ranks may use counts 1/k. At least 1."""
    users = [core for cores in of_all for core in cores]
    whole = sum(1 / users.count(core) for core in own)
    return max(1, int(whole + 1e-9))


def binding_words(rank: int, hosts: Sequence[Host], n_cores: int) -> str:
    """Return a warning if the launcher binds a machine's ranks to half of its cores or less. Pure.

    The first rank of each machine warns; for the others, and without cause, the text is empty.
    """
    own = hosts[rank]
    local = [i for i, host in enumerate(hosts) if host.machine == own.machine]
    usable = {core for i in local for core in hosts[i].cores}
    if rank != local[0] or 2 * len(usable) > n_cores:
        return ""
    return (
        f"the launcher binds the ranks on {own.node} to {len(usable)} of its {n_cores} cores, and "
        f"the workers with them; start the job with `mpiexec --bind-to none`, or with more "
        f"`srun --cpus-per-task`"
    )
