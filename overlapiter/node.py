"""Which ranks share this node, and what part of it each of them takes.

Found from the variables that MPI launchers set, without MPI; :mod:`overlapiter.mpi` asks MPI and
replaces it. What is uncertain counts as one process alone on its node: too large a part costs
speed, too small a part as well, and MPI puts both right.

Source: the variables are those of Open MPI 5 ("Environment variables set for MPI applications"),
of Hydra, which MPICH and Intel MPI share, of MVAPICH2, of Cray's PALS and PMI, and of srun(1).
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

#: Names the node of a process, in the place of its host name: several "nodes" on one machine.
NODE_VARIABLE = "OVERLAPITER_NODE"

#: Local rank and local size, as the launchers call them. Slurm's tell less, and come last: a
#: launcher may itself have been started by Slurm, once for each node.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
#: One process: local rank, local size, number of the node, nodes.
_ALONE = (0, 1, 0, 1)


@dataclasses.dataclass(frozen=True)
class Node:
    """The node of this process, and the place of this process there.

    Attributes:
        name: Of the node, for people.
        local_rank: Of this process among the ranks of its node, from 0.
        local_size: Ranks on this node.
        index: Of the node among those of the job, from 0; 0 where nobody knows.
        count: Nodes of the job; 1 where nobody knows.
        cores: Cores for this rank and its workers, at least 1.
    """

    name: str
    local_rank: int = 0
    local_size: int = 1
    index: int = 0
    count: int = 1
    cores: int = 1


class Place(NamedTuple):
    """What a rank tells the others about where it runs.

    Attributes:
        node: Name of its node; for people.
        machine: Identifies the running kernel: those who share it share its cores.
        is_named: Whether the user named the node; then the name alone says who is on it.
        cores: The cores that it may use.
    """

    node: str
    machine: str
    is_named: bool
    cores: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What all ranks of a node have in common, and no others."""
        return self.node, "" if self.is_named else self.machine


_found: Node | None = None


def set_node(node: Node | None) -> None:
    """Have :func:`this_node` return what somebody knows better; None for what the launcher says."""
    global _found
    _found = node


def this_node() -> Node:
    """Return the node of this process. Costs some system calls, and asks no other process."""
    return _found or node_from(os.environ, this_place(), count_cores)


def this_place() -> Place:
    """Return where this process runs."""
    name = os.environ.get(NODE_VARIABLE, "")
    return Place(
        name or socket.gethostname(),
        boot_id() or socket.gethostname(),
        bool(name),
        tuple(sorted(os.sched_getaffinity(0))),
    )


def boot_id() -> str:
    """Return what identifies the running kernel; host names of containers and clones repeat."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def count_cores() -> int:
    """Return how many cores the job may use on this machine, whatever this rank is bound to."""
    every = range(os.cpu_count() or 1)
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, every)  # the kernel grants what the control group has
    except OSError:
        return len(every)
    try:
        return len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, own)


# --- from the launcher's variables ------------------------------------------------------------


def node_from(environment: Mapping[str, str], place: Place, count_all: Callable[[], int]) -> Node:
    """Return a process's node by what its launcher says.

    Args:
        environment: Variables of the process.
        place: Where it runs.
        count_all: Returns the cores of the node that the job may use; asked if there are several
            ranks.
    """
    rank, size, index, count = _launched(environment)
    cores = len(place.cores)
    if size > 1:  # bound to some, or free to use all: more than an even part is not ours
        cores = max(1, min(cores, count_all() // size))
    return Node(place.node, rank, size, index, count, cores)


def _launched(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return local rank, local size, number of the node, and nodes."""
    for rank_name, size_name in _LAUNCHERS:
        rank, size = _count(environment, rank_name), _count(environment, size_name)
        if 0 <= rank < size:
            return rank, size, *_ALONE[2:]
    return _launched_by_slurm(environment)


def _launched_by_slurm(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Read what srun says, which a batch script and a shell of salloc have not been told.

    These have ``SLURM_PROCID`` and ``SLURM_NTASKS``, too, but are one process.
    """
    if "SLURM_STEP_ID" not in environment and "SLURM_STEPID" not in environment:
        return _ALONE
    sizes = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    rank, index = _count(environment, "SLURM_LOCALID"), _count(environment, "SLURM_NODEID")
    is_sound = 0 <= index < len(sizes) and 0 <= rank < sizes[index]
    if not is_sound or _count(environment, "SLURM_STEP_NUM_TASKS") not in (-1, sum(sizes)):
        return _ALONE
    return rank, sizes[index], index, len(sizes)


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node from Slurm's short form, ``4(x3),2``; [] if it is none."""
    matches = [_TASKS.fullmatch(part) for part in text.split(",")]
    sizes: list[int] = []
    for match in matches:
        if match is None:
            return []
        sizes += [int(match[1])] * int(match[2] or 1)
    return sizes


def _count(environment: Mapping[str, str], name: str) -> int:
    """Return a variable's value; -1 if it is missing, or no count."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else -1


# --- from all ranks ---------------------------------------------------------------------------


def node_among(rank: int, places: Sequence[Place]) -> Node:
    """Return a rank's node by what all ranks have told. Pure.

    Args:
        rank: The rank.
        places: Where each rank runs, by rank.
    """
    own = places[rank]
    keys = list(dict.fromkeys(place.key for place in places))
    local = [i for i, place in enumerate(places) if place.key == own.key]
    neighbours = [place.cores for place in places if place.machine == own.machine]
    return Node(
        own.node,
        local.index(rank),
        len(local),
        keys.index(own.key),
        len(keys),
        share_of_cores(own.cores, neighbours),
    )


def share_of_cores(own: Collection[int], of_all: Sequence[Collection[int]]) -> int:
    """Return how many cores are a rank's: one that k ranks may use counts 1/k. At least 1.

    Args:
        own: The cores that the rank may use.
        of_all: Those of every rank of the machine, this one among them.
    """
    users = [core for cores in of_all for core in cores]
    whole = sum(1 / users.count(core) for core in own)
    return max(1, int(whole + 1e-9))


def binding_words(rank: int, places: Sequence[Place], n_cores: int) -> str:
    """Say that the launcher leaves the ranks of a machine half of its cores or less. Pure.

    Args:
        rank: The rank that asks; the first one of each machine is told.
        places: Where each rank runs, by rank.
        n_cores: Cores of this rank's machine that the job may use.

    Returns:
        For people to read; empty if it does not, or others are told.
    """
    own = places[rank]
    local = [i for i, place in enumerate(places) if place.machine == own.machine]
    usable = {core for i in local for core in places[i].cores}
    if rank != local[0] or 2 * len(usable) > n_cores:
        return ""
    return (
        f"the launcher binds the ranks on {own.node} to {len(usable)} of its {n_cores} cores, and "
        f"the workers with them; start the job with `mpiexec --bind-to none`, or with more "
        f"`srun --cpus-per-task`"
    )
