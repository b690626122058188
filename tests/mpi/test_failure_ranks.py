"""A rank that dies takes the job down with a message; the next job uses what was staged.

If it did not, the other ranks would wait until ``run_job`` kills them, and fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, check_staged, run_job

pytestmark = NEEDS_MPIEXEC

PROGRAM = Path(__file__).with_name("rank_failing.py")

MISSING = ("a file is missing", "FileNotFoundError: [Errno 2] No such file or directory:")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("n_ranks", "deed", "printed", "reason", "exit_status"),
    [
        pytest.param(2, *MISSING, "FileNotFoundError", 1, marks=SLOW),
        pytest.param(4, "sys.exit", "", "exit code 3", 3, marks=SLOW),
        (2, "raise SystemExit", "", "exit code 3", 3),
        pytest.param(
            2, "a reader dies", "WorkerDiedError: 3 file readers died", "WorkerDiedError", 1,
            marks=SLOW,
        ),
        pytest.param(
            2, "an exception", "ArithmeticError: the loss is not finite", "ArithmeticError", 1,
            marks=SLOW,
        ),
        pytest.param(
            4, "a thread raises", "ZeroDivisionError: division by zero",
            "ZeroDivisionError in watcher", 1, marks=SLOW,
        ),
        pytest.param(
            2, "is interrupted", "KeyboardInterrupt", "KeyboardInterrupt", 130, marks=SLOW
        ),
    ],
)  # fmt: skip
def test_a_rank_that_fails_ends_the_job_and_says_why(
    tmp_path: Path,
    image_folder: Path,
    n_ranks: int,
    deed: str,
    printed: str,
    reason: str,
    exit_status: int,
) -> None:
    # Python tells no hook of it, so another one would wait in MPI_Finalize.
    runner = ("-m", "overlapiter.mpi") if deed == "raise SystemExit" else ()
    ended = run_job(PROGRAM, n_ranks, tmp_path, deed, image_folder, runner=runner)

    assert ended.exit_status == exit_status
    message = f"overlapiter: rank {n_ranks - 1} of {n_ranks}, on node "
    before, told, after = ended.output.partition(message)
    assert told
    assert printed in before
    assert f", has failed ({reason}); MPI_Abort ends the job" in after
    assert message not in after
    check_staged(tmp_path / "staging", image_folder)


@pytest.mark.parametrize(
    ("deed", "printed"),
    [
        ("a file is missing", "has failed (FileNotFoundError); MPI_Abort ends the job"),
        pytest.param("is killed", "signal 9", marks=SLOW),
    ],
)
def test_the_job_after_one_that_died_goes_on_with_what_is_staged(
    tmp_path: Path, image_folder: Path, deed: str, printed: str
) -> None:
    ended = run_job(PROGRAM, 2, tmp_path, deed, image_folder)

    assert ended.exit_status != 0
    assert printed in ended.output
    n_staged = check_staged(tmp_path / "staging", image_folder)
    assert n_staged >= 4

    following = run_job(PROGRAM, 2, tmp_path, "nothing", image_folder)

    assert following.exit_status == 0, following.output
    assert "has failed" not in following.output
    assert sum(rank["files staged"] for rank in following.results) == 12 - n_staged
    assert [rank["forks"] for rank in following.results] == [[], []]  # MPI runs first
    assert check_staged(tmp_path / "staging", image_folder) == 12


@pytest.mark.slow
def test_the_hook_of_chainermn_alone_ends_the_job_too(tmp_path: Path, image_folder: Path) -> None:
    ended = run_job(PROGRAM, 2, tmp_path, "with ChainerMN alone", image_folder)

    assert ended.exit_status != 0
    assert MISSING[1] in ended.output
    assert "Uncaught exception on rank 1." in ended.output
