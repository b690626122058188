"""Programs of several ranks, under an MPI launcher."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

#: A rank that waits for the others is not to take the cores that their readers need.
YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def launch(
    program: list[str], n_ranks: int, n_nodes: int = 1, launcher: str = "", options: str = ""
) -> list[str]:
    """Return the command of a job, in which each node is a group of ranks with a name.

    With an empty launcher, Open MPI's mpiexec. The options are some more of the launcher's.
    """
    command = (shlex.split(launcher) or _open_mpi()) + shlex.split(options)
    for number in range(n_nodes):
        name = ["env", f"OVERLAPITER_NODE=node-{number}"] if n_nodes > 1 else []
        command += [":"] * (number > 0) + ["-n", str(n_ranks), *name, *program]
    return command


def _open_mpi() -> list[str]:
    beside = Path(sys.executable).with_name("mpiexec")
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    # Unbound: the workers of a rank would be confined to its one core.
    mpiexec = str(beside) if beside.exists() else "mpiexec"
    return [mpiexec, *as_root, "--oversubscribe", "--bind-to", "none"]
