"""The command `search`, in one process and in groups of ranks, some of which are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import overlapiter.mpi
from overlapiter.cli.main import main
from overlapiter.errors import OptionError, TrainingError
from tests.chainer.mpi_jobs import NEEDS_MPIEXEC, exit_status_of
from tests.chainer.scripts import ENVIRONMENT
from tests.mpi.training.counting import Counting
from tests.mpi.training.jobs import write_digits, write_numbers
from tests.store.disks import mounted_tmpfs

pytest.importorskip("optuna")

MODEL = Path(__file__).with_name("model.py")
SPACE = """
[space]
learning_rate = {low = 1e-3, high = 0.1, log = true}
batch = [20, 50]
"model.n_hidden" = [8, 12]  # the default is 16
[settings]
epochs = 2
optimizer = "momentum"
"""


TOLERANT = ("--with-ft", "ulfm")


def search(
    folder: Path,
    n_trials: int,
    *words: object,
    n_ranks: int = 0,
    more: str = "",
    launcher: Sequence[str] = TOLERANT,
    program: str = "overlapiter",
    **environment: str,
):
    """Run the command on the digits; return its exit status, its output and its complaints."""
    lists = write_digits(folder)
    (folder / "space.toml").write_text(SPACE + more)
    command = [sys.executable, "-m", program, "search", "space.toml", MODEL, *lists]
    if n_ranks:
        mpiexec = ["mpiexec", "--allow-run-as-root", "--oversubscribe", *launcher]
        command = [*mpiexec, "-n", n_ranks, *command]
    ended = subprocess.run(
        [*map(str, command), "--trials", str(n_trials), *map(str, words)],
        cwd=folder,
        env={**ENVIRONMENT, "SEARCH_MARK": str(folder / "killed"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    ended.returncode = exit_status_of(ended.returncode, ended.stderr)
    return ended


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "search" / "search.json").read_text())


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_a_search_goes_on_where_it_ended_and_its_best_settings_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = search(tmp_path, 2)
    assert ended.returncode == 0, ended.stderr
    assert "learning_rate" in ended.stdout
    first = results(tmp_path)["trials"]
    monkeypatch.chdir(tmp_path)
    lists = [*map(str, write_digits(tmp_path))]
    assert main(["search", "space.toml", str(MODEL), *lists, "--trials", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == results(tmp_path)
    assert len(result["trials"]) == 3
    assert result["trials"][:2] == first
    assert result["best"]["value"] == max(t["value"] for t in result["trials"]) > 0.15
    assert (tmp_path / "search" / "search.png").stat().st_size > 5000
    head = (tmp_path / "search" / "best.toml").read_text().splitlines()[0]
    assert head.startswith("# overlapiter train ")
    assert head.endswith(" --settings search/best.toml")
    best = ("--settings", "search/best.toml", "--out", "best")
    assert main(["train", str(MODEL), *lists, *best]) == 0
    epochs = json.loads((tmp_path / "best" / "history.json").read_text())["epochs"]
    assert epochs[-1]["val_accuracy"] == result["best"]["value"]


@pytest.mark.parametrize(
    "killed", ["2", pytest.param("3", marks=pytest.mark.slow)], ids=["leader", "worker"]
)
class TestKilled:
    pytestmark = NEEDS_MPIEXEC

    def test_the_trial_of_a_group_that_loses_a_rank_is_done_again(
        self, tmp_path: Path, killed: str
    ) -> None:
        ended = search(tmp_path, 3, "--group", 2, n_ranks=4, SEARCH_KILLED=killed)
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / "killed").exists()
        trials = results(tmp_path)["trials"]
        assert [trial["state"] for trial in trials] == ["complete"] * 3
        assert [trial["n_epochs"] for trial in trials] == [2] * 3
        # The one that was begun twice has kept its directory, and so its checkpoint.
        folders = {Path(trial["out"]).name for trial in trials}
        assert len(folders) == 3
        assert folders > {"0000", "0001"}


@pytest.mark.slow
class TestStopped:
    pytestmark = NEEDS_MPIEXEC

    @pytest.mark.parametrize(
        ("n_ranks", "group_size", "stopped", "launcher"),
        [(3, 1, 2, ()), (4, 2, 2, ()), (4, 2, 3, ()), (3, 1, 0, ()), (4, 2, 2, TOLERANT)],
        ids=["alone", "leader", "worker", "rank-0", "ulfm"],
    )
    def test_a_search_goes_on_without_a_stopped_process(
        self, tmp_path: Path, n_ranks: int, group_size: int, stopped: int, launcher: tuple[str, ...]
    ) -> None:
        words = ("--group", group_size)
        fault = {"SEARCH_KILLED": str(stopped), "SEARCH_SIGNAL": "SIGSTOP"}
        more = "worker_timeout = 6"
        ended = search(tmp_path, 4, *words, n_ranks=n_ranks, more=more, launcher=launcher, **fault)
        assert (ended.returncode == 0) == (stopped != 0), ended.stderr
        assert [trial["state"] for trial in results(tmp_path)["trials"]] == ["complete"] * 4
        if stopped == 3:  # it is continued, and may go on
            assert "of group 1 is done again" in ended.stderr
        else:
            assert f"rank {stopped} is silent for 6 s; another group does trial" in ended.stderr


DIES = """
import os, signal
from optuna.storages import journal
from overlapiter.mpi.searching.study import Study

for kind in (journal.JournalFileSymlinkLock, journal.JournalFileOpenLock):
    kind.release = lambda _lock: os.kill(os.getpid(), signal.SIGKILL)
Study("search", None, "val_loss", 1, 1)
"""


@pytest.mark.slow
def test_a_process_that_dies_as_it_writes_to_the_journal_does_not_end_the_search(
    tmp_path: Path,
) -> None:
    died = subprocess.run([sys.executable, "-c", DIES], cwd=tmp_path, env=ENVIRONMENT, check=False)
    assert died.returncode == -signal.SIGKILL

    ended = search(tmp_path, 1)

    assert ended.returncode == 0, ended.stderr
    assert [trial["state"] for trial in results(tmp_path)["trials"]] == ["complete"]


BY_ITSELF = """
from mpi4py import MPI
import overlapiter.mpi
from tests.mpi.training.counting import build_model

study = overlapiter.mpi.search(
    {"space": {"batch": [2, 4]}}, build_model, "numbers.txt", "numbers.txt", n_trials=1, epochs=1,
    metric="val_loss", out=f"search{MPI.COMM_WORLD.rank}", comm=MPI.COMM_SELF,
)
assert [trial.state for trial in study.trials()] == ["complete"]
"""


@pytest.mark.slow
class TestSearchOfRanks:
    pytestmark = NEEDS_MPIEXEC

    @pytest.mark.alone
    def test_a_leader_that_leaves_early_does_not_end_the_trials_of_the_others(
        self, tmp_path: Path
    ) -> None:
        fault = {"SEARCH_KILLED": "1", "SEARCH_SIGNAL": "leaves"}
        more = "worker_timeout = 1"
        ended = search(
            tmp_path, 2, n_ranks=2, more=more, launcher=(), program="tests.mpi.impatient", **fault
        )
        assert [trial["state"] for trial in results(tmp_path)["trials"]] == ["complete"] * 2
        assert "did not end" not in ended.stderr
        assert "has not ended" not in ended.stderr

    def test_a_search_does_not_wait_for_ever_for_a_rank_that_is_stopped_at_the_start(
        self, tmp_path: Path
    ) -> None:
        more, fault = "worker_timeout = 1", {"STOPPED_RANK": "1"}
        ended = search(
            tmp_path, 2, n_ranks=2, more=more, launcher=(), program="tests.mpi.impatient", **fault
        )
        assert ended.returncode == 1
        assert "rank 1 did not start in 8 s" in ended.stderr

    def test_a_group_goes_on_though_a_rank_is_stopped_while_another_one_is_waited_for(
        self, tmp_path: Path
    ) -> None:
        program = (sys.executable, "-m", "tests.mpi.searching.rank_roll")
        mpiexec = ("mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "3")
        subprocess.run([*mpiexec, *program], cwd=tmp_path, env=ENVIRONMENT, timeout=60, check=True)
        assert json.loads((tmp_path / "left.json").read_text()) == [[1, 2], 1]

    def test_each_rank_of_a_job_may_search_by_itself(self, tmp_path: Path) -> None:
        write_numbers(tmp_path)
        program = (sys.executable, "-c", BY_ITSELF)
        mpiexec = ("mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "2")
        subprocess.run([*mpiexec, *program], cwd=tmp_path, env=ENVIRONMENT, timeout=60, check=True)
        for rank in (0, 1):
            assert (tmp_path / f"search{rank}" / "trials" / "0000" / "weights.npz").exists()

    @pytest.mark.alone
    def test_trials_whose_start_takes_longer_than_the_limit_are_no_losses(
        self, tmp_path: Path
    ) -> None:
        more = "worker_timeout = 4"
        ended = search(tmp_path, 1, n_ranks=2, more=more, launcher=(), SEARCH_SIGNAL="slow")
        assert ended.returncode == 0, ended.stderr
        assert "silent" not in ended.stderr


class Large(Counting):
    """Does not fit into the memory."""

    def gradient(self, *_arguments: Any) -> list[float]:
        raise MemoryError("no room")


def search_here(
    folder: Path, space: dict[str, Any], n_trials: int, model_size: int = 100, **more: Any
) -> Any:
    """Search in this process, with a model that counts or, with a size above 8, does not fit."""

    def build(size: int = 8) -> Counting:
        return (Large if size > 8 else Counting)(model_size)

    numbers = folder / "numbers.txt"
    return overlapiter.mpi.search(
        {"space": space}, build, numbers, numbers, n_trials=n_trials, metric="val_loss", epochs=1,
        out=folder / "search", **more,
    )  # fmt: skip


@pytest.mark.usefixtures("undrawn")
@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ({"model.size": [8, 16]}, "MemoryError: no room"),
        (
            {"algorithm": ["downpour", "easgd"], "synchronous": [False, True]},
            "synchronous: easgd has no such mode; leave it out, or use --algorithm downpour",
        ),
    ],
    ids=["exception", "combination"],
)
def test_a_search_goes_on_after_a_trial_that_cannot_be_trained(
    tmp_path: Path, space: dict[str, list[Any]], reason: str
) -> None:
    write_numbers(tmp_path)
    trials = search_here(tmp_path, space, 8).trials()
    assert {trial.state for trial in trials} == {"complete", "failed"}
    assert {trial.reason for trial in trials if trial.state == "failed"} == {reason}
    assert len(trials) == 8


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_nothing_is_left_to_go_on_from_where_a_trial_has_ended(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    (trial,) = search_here(
        tmp_path, {"batch": [2, 4]}, 1, algorithm="easgd", checkpoint_seconds=0.0
    ).trials()
    assert trial.state == "complete"
    assert (Path(trial.out) / "weights.npz").exists()
    assert not [*Path(trial.out).glob("checkpoint*")]


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_a_search_whose_files_are_missing_is_refused_and_goes_on_when_they_are_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "numbers.txt").write_text("numbers0.h5\n")
    with pytest.raises(OptionError, match=r"there is no .*numbers0\.h5"):
        search_here(tmp_path, {"batch": [2, 4]}, 2)
    write_numbers(tmp_path)
    trials = search_here(tmp_path, {"batch": [2, 4]}, 2).trials()
    assert [trial.state for trial in trials] == ["complete"] * 2


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_a_full_disk_ends_a_search_which_goes_on_when_there_is_room(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    with mounted_tmpfs(tmp_path / "search", 400 << 10) as disk:
        (disk / "in the way").write_bytes(bytes(384 << 10))
        with pytest.raises(TrainingError, match="No space left on device"):
            search_here(tmp_path, {"batch": [2, 4]}, 2, model_size=3000)
        (disk / "in the way").unlink()
        trials = search_here(tmp_path, {"batch": [2, 4]}, 2, model_size=3000).trials()
        assert [trial.state for trial in trials] == ["complete"] * 2


def test_a_space_that_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    ended = search(tmp_path, 2, "--metric", "val_beauty")
    assert ended.returncode == 2
    assert "choose one of val_loss, val_accuracy" in ended.stderr
    assert not (tmp_path / "search").exists()
