"""Programs of several ranks, under an MPI launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

#: A rank that waits for the others is not to take the cores that their readers need.
YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def launch(
    program: list[str], n_ranks: int, n_nodes: int = 1, options: Sequence[str] = ()
) -> list[str]:
    """Return the command of a job, in which each node is a group of ranks with a name.

    It is Open MPI's mpiexec that starts it, with these options besides.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    # Unbound: the workers of a rank would be confined to its one core.
    usual = [*as_root, "--oversubscribe", "--bind-to", "none"]
    command = [str(beside) if beside.exists() else "mpiexec", *usual, *options]
    for number in range(n_nodes):
        name = ["env", f"OVERLAPITER_NODE=node-{number}"] if n_nodes > 1 else []
        command += [":"] * (number > 0) + ["-n", str(n_ranks), *name, *program]
    return command
