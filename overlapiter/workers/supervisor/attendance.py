"""What the staging directory holds of a run, for ``overlapiter status`` to show."""

from __future__ import annotations

import os
import pwd

from overlapiter.node import command_words
from overlapiter.store.site import Run
from overlapiter.workers.plan import SupervisorPlan

_SHOWN_WORDS = 2  # the interpreter and the script: further ones may be private
_SHOWN_CHARACTERS = 200
#: Not all of them: some hold credentials.
_SHOWN_OPTIONS = ("source", "validate", "n_prefetchers", "reads_in_flight")
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PJM_JOBID", "JOB_ID")


def run_of(plan: SupervisorPlan, board_fd: int) -> Run:
    """Return the run that a supervisor works for.

    Args:
        plan: Its plan.
        board_fd: Memory of the counters; the trainer keeps it open, so others can read them there.
    """
    staging = plan.staging
    facts: dict[str, object] = {
        "command": " ".join(command_words(plan.trainer_pid)[:_SHOWN_WORDS])[:_SHOWN_CHARACTERS],
        "trainer_pid": plan.trainer_pid,
        "board_inode": os.fstat(board_fd).st_ino,
        "n_readers": plan.n_readers,
        "batch_size": plan.batch_size,
        "dataset_size": plan.dataset_size,
        "host": os.uname().nodename,
        "user": _user_name(os.geteuid()),
        "job": next((f"{n}={os.environ[n]}" for n in _JOB_VARIABLES if os.environ.get(n)), ""),
    }
    if staging is not None:
        options = {name: getattr(staging, name) for name in _SHOWN_OPTIONS}
        facts["staging"] = {**options, "tiers": [site._asdict() for site in staging.sites]}
    return Run(plan.run_number, facts)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container may have no such user
        return str(number)
