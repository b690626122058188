"""Training on several ranks: the same as on one, every example once, though workers die or hang."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import overlapiter.mpi
from tests.chainer.mpi_jobs import NEEDS_MPIEXEC
from tests.chainer.scripts import ENVIRONMENT, wait_until

from .jobs import (
    COUNTED,
    COUNTED_HERE,
    COUNTING,
    DIGITS,
    IMPATIENT,
    WITHOUT,
    counts,
    end_of,
    epochs,
    rank_of,
    run_training,
    same_weights,
    training_job,
    write_digits,
    write_file,
    write_numbers,
)

pytestmark = [*NEEDS_MPIEXEC, pytest.mark.usefixtures("undrawn")]

TWICE = [2] * 100


def test_one_worker_ends_with_the_weights_of_a_single_process_bit_for_bit(tmp_path: Path) -> None:
    lists = write_digits(tmp_path)
    alone: dict[str, Any] = {"epochs": 2, "metrics": "accuracy", "out": tmp_path / "alone"}
    overlapiter.mpi.train(DIGITS, *lists, **alone)
    words = (DIGITS, *lists, "--epochs", 2, "--metrics", "accuracy")
    assert run_training(tmp_path, 2, *words, "--out", "ranks").exit_status == 0
    assert same_weights(tmp_path / "alone", tmp_path / "ranks")
    for one, other in zip(epochs(tmp_path / "alone"), epochs(tmp_path / "ranks"), strict=True):
        assert [one[key] for key in ("loss", "val_loss", "val_accuracy")] == [
            other[key] for key in ("loss", "val_loss", "val_accuracy")
        ]


def test_every_example_is_used_once_per_epoch_by_three_workers_though_none_is_told_their_number(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").mkdir()
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 2, "--trace", "trace.json")
    log = {"TRAINING_LOG": str(tmp_path / "log"), "TRAINING_MEET": "3"}
    # As srun with PMIx starts them: alone each would write to the same directory.
    unset = ("env", "-u", "OMPI_COMM_WORLD_SIZE")
    ended = run_training(tmp_path, 4, *words, wrapper=unset, environment=log)
    assert ended.exit_status == 0, ended.output
    assert counts(tmp_path / "result") == TWICE
    assert [record["examples"] for record in epochs(tmp_path / "result")] == [100, 100]
    assert ended.output.count("epoch") == 2
    assert "3 workers" in ended.output
    _check_trace(tmp_path)


def _check_trace(folder: Path) -> None:
    names = {}
    for rank, path in enumerate(("trace.json", "trace.rank1.json")):
        text = (folder / path).read_text().rstrip().rstrip(",")
        events = json.loads(text if text.endswith("]") else text + "]")
        names[rank] = {event["name"] for event in events if event["ph"] == "X"}
        rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert rows == ({"main", "reading"} if rank else {"main"})
    assert "apply" in names[0]
    assert {"train", "compute", "send", "receive", "read"} <= names[1]


@pytest.mark.parametrize("deed", ["kill", pytest.param("interrupt", marks=pytest.mark.slow)])
def test_a_killed_worker_returns_its_lease_and_no_example_is_lost_or_used_twice(
    tmp_path: Path, deed: str
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 2)
    fault = {"TRAINING_FAULT": f"{deed}:2:5"}
    ended = run_training(tmp_path, 4, *words, is_tolerant=True, environment=fault)
    assert ended.exit_status == 0, ended.output
    assert "rank 2 is lost (its process has ended)" in ended.output
    assert counts(tmp_path / "result") == TWICE
    assert epochs(tmp_path / "result")[-1]["workers"] == 2


@pytest.mark.parametrize(
    ("deed", "rank", "n_ranks", "n_masters", "words"),
    [
        ("kill", 2, (3, 4), 0, "process rank 2"),  # what the server says, mpiexec may not pass on
        ("interrupt", 2, (3, 0), 0, "rank 2 is interrupted"),
        pytest.param("interrupt", 3, (5, 5), 2, "rank 3 is interrupted", marks=pytest.mark.slow),
    ],
)
def test_without_fault_tolerance_any_number_of_workers_goes_on_exactly_where_the_job_ended(
    tmp_path: Path, deed: str, rank: int, n_ranks: tuple[int, int], n_masters: int, words: str
) -> None:
    listing, out = write_numbers(tmp_path), tmp_path / "result"
    overlapiter.mpi.train(COUNTING, listing, **COUNTED_HERE, epochs=1, out=out)
    masters = ("--masters", n_masters) if n_masters else ()
    command = (COUNTING, listing, *COUNTED, "--epochs", 3, *masters)
    fault = {"TRAINING_FAULT": f"{deed}:{rank}:20"}
    ended = run_training(tmp_path, n_ranks[0], *command, environment=fault)
    assert ended.exit_status in ((137,) if deed == "kill" else (1, 130, 143))
    assert words in ended.output
    assert "going on from the checkpoint" in ended.output
    ended = run_training(tmp_path, n_ranks[1], *command)
    assert ended.exit_status == 0, ended.output
    assert "going on from the checkpoint" in ended.output
    assert counts(out) == [3] * 100


@pytest.mark.parametrize(
    "is_tolerant", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "ulfm"]
)
def test_a_stopped_worker_is_given_up_and_does_not_keep_the_job_from_ending(
    tmp_path: Path, is_tolerant: bool
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 2, "--worker-timeout", 1)
    fault = {"TRAINING_FAULT": "stop:2:5"}
    ended = run_training(tmp_path, 3, *words, is_tolerant=is_tolerant, environment=fault)
    assert ended.exit_status == 0, ended.output
    assert "rank 2 is lost (silent for 1 s)" in ended.output
    assert counts(tmp_path / "result") == TWICE


@pytest.mark.slow
def test_a_worker_that_was_given_up_and_comes_back_begins_anew(tmp_path: Path) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 12, "--worker-timeout", 1)
    fault = {"TRAINING_FAULT": "stop:2:5", "TRAINING_WAIT_SECONDS": "0.05"}
    with training_job(tmp_path, 3, *words, environment=fault) as job:
        output = tmp_path / "output.txt"
        wait_until(lambda: "rank 2 is lost" in output.read_text())
        for process in psutil.Process(job.pid).children(recursive=True):
            if process.status() == psutil.STATUS_STOPPED:
                process.send_signal(signal.SIGCONT)
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 0, ended.output
    assert "rank 2 is back" in ended.output
    assert counts(tmp_path / "result") == [12] * 100
    assert any(record["workers"] == 2 for record in epochs(tmp_path / "result")[1:])


def test_sub_servers_leave_no_file_out(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 2, "--masters", 2)
    log = {"TRAINING_LOG": str(tmp_path / "log"), "TRAINING_MEET": "3"}
    ended = run_training(tmp_path, 6, *words, environment=log)
    assert ended.exit_status == 0, ended.output
    used = Counter(
        word for each in (tmp_path / "log").iterdir() for word in each.read_text().split()
    )
    assert sorted(used.values()) == TWICE
    assert {each.name for each in (tmp_path / "log").iterdir()} == {"3", "4", "5"}
    assert [record["examples"] for record in epochs(tmp_path / "result")] == [100, 100]
    assert all(record["memory_bytes"] > 1e7 for record in epochs(tmp_path / "result"))
    assert epochs(tmp_path / "result")[0]["cpu_seconds"] > 0


@pytest.mark.slow
def test_a_run_with_sub_servers_goes_on_amid_an_epoch_after_its_server_was_killed(
    tmp_path: Path,
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 1, "--masters", 1,
             "--checkpoint-seconds", 0)  # fmt: skip
    checkpoint = tmp_path / "result" / "checkpoint.npz"

    def is_amid_the_epoch() -> bool:
        if not checkpoint.exists():
            return False
        with np.load(checkpoint) as file:
            return bool(json.loads(str(file["facts"]))["epochs"]["examples"])

    with training_job(tmp_path, 4, *words, environment={"TRAINING_WAIT_SECONDS": "0.05"}) as job:
        wait_until(is_amid_the_epoch)
        rank_of(job, 0).kill()
        assert job.wait(200)
    assert not (tmp_path / "result" / "history.json").exists()
    ended = run_training(tmp_path, 4, *words)
    assert ended.exit_status == 0, ended.output
    assert "going on from the checkpoint" in ended.output
    assert [record["examples"] for record in epochs(tmp_path / "result")] == [100]


@pytest.mark.slow
def test_a_worker_of_a_sub_server_may_die(tmp_path: Path) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 2, "--masters", 2)
    fault = {"TRAINING_FAULT": "kill:4:5"}
    ended = run_training(tmp_path, 6, *words, is_tolerant=True, environment=fault)
    assert ended.exit_status == 0, ended.output
    assert [record["examples"] for record in epochs(tmp_path / "result")] == [100, 100]


def test_a_worker_that_its_sub_server_has_given_up_may_yet_say_why_it_cannot_go_on(
    tmp_path: Path,
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--worker-timeout", 3, "--masters", 1)
    (tmp_path / "log").mkdir()
    (tmp_path / "fault-happened").touch()  # the others do not wait for it
    environment = {
        "TRAINING_FAULT": "nan:3:1", "TRAINING_WAIT_SECONDS": "1",
        "TRAINING_LOG": str(tmp_path / "log"),
    }  # fmt: skip
    with training_job(tmp_path, 4, *words, environment=environment) as job:
        wait_until((tmp_path / "log" / "3").exists)
        rank_of(job, 3).suspend()
        wait_until(lambda: "rank 3 is lost" in (tmp_path / "output.txt").read_text())
        rank_of(job, 3).resume()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 1, ended.output
    assert "rank 3 cannot go on: the loss of a mini-batch is nan" in ended.output


@pytest.mark.parametrize("mode", ["workers", pytest.param("inline", marks=pytest.mark.slow)])
def test_synchronous_workers_validate_with_exact_sums(tmp_path: Path, mode: str) -> None:
    lists = write_digits(tmp_path)
    words = (DIGITS, *lists, "--epochs", 2, "--synchronous", "--validation", mode, "--metrics",
             "accuracy", "--piece-examples", 50, "--learning-rate", 0.01)  # fmt: skip
    assert run_training(tmp_path, 3, *words, "--out", "ranks").exit_status == 0
    (last,) = epochs(tmp_path / "ranks")[-1:]
    assert last["val_accuracy"] > 0.6
    assert last["workers"] == 2
    # The sums do not depend on who has evaluated which piece.
    from overlapiter.mpi.training.data import Source, listed
    from overlapiter.mpi.training.model import builder_from, wrapped
    from overlapiter.mpi.training.settings import Settings
    from overlapiter.objective import Objective

    source = Source(Settings(metrics=("accuracy",)))
    files = listed(lists[1], "val")
    batches = [source.read(path, 0, source.look_at(path)[0]) for path in files]
    example = tuple(each[:1] for each in batches[0])
    objective = Objective("softmax_cross_entropy", ("accuracy",), "cpu", example)
    model = wrapped(builder_from(DIGITS), objective, 0)
    import chainer

    chainer.serializers.load_npz(tmp_path / "ranks" / "weights.npz", model._link)  # type: ignore[attr-defined]  # Chainer's
    n = [len(batch[-1]) for batch in batches]
    accuracy = sum(model.evaluate(b)[1] * k for b, k in zip(batches, n, strict=True)) / sum(n)
    assert last["val_accuracy"] == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.parametrize(
    ("fault", "more", "words"),
    [
        ("nan:2:3", (), "rank 2 cannot go on: the loss of a mini-batch is nan"),
        ("nan:2:1", ("--synchronous",), "rank 2 cannot go on: the loss of a mini-batch is nan"),
        pytest.param("other:2:0", (), "rank 2 has built another model", marks=pytest.mark.slow),
        pytest.param("exit:2:3", (), "rank 2 cannot go on: SystemExit: 0", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_makes_no_sense_ends_in_order_with_a_message(
    tmp_path: Path, fault: str, more: tuple[str, ...], words: str
) -> None:
    arguments = (COUNTING, write_numbers(tmp_path), *COUNTED, *more)
    ended = run_training(tmp_path, 3, *arguments, environment={"TRAINING_FAULT": fault})
    assert ended.exit_status == 1
    assert words in ended.output
    assert "Traceback" not in ended.output


def test_synchronous_workers_beyond_the_quorum_do_not_wait_for_it_when_the_run_stops_early(
    tmp_path: Path,
) -> None:
    arguments = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 9)
    early = ("--synchronous", "--quorum", 0.5, "--target", "loss=0")
    (tmp_path / "log").mkdir()
    log = {"TRAINING_LOG": str(tmp_path / "log"), "TRAINING_MEET": "3"}
    ended = run_training(tmp_path, 4, *arguments, *early, environment=log)
    assert ended.exit_status == 0, ended.output
    assert "stopped early: loss has reached 0" in ended.output


@pytest.mark.parametrize(
    ("fault", "is_tolerant", "n_masters", "reason"),
    [
        ("stopped", False, 0, "silent for 3 s"),
        pytest.param("stopped", True, 0, "silent for 3 s", marks=pytest.mark.slow),
        pytest.param("stopped", False, 2, "silent for 3 s", marks=pytest.mark.slow),
        pytest.param("killed", True, 0, "its process has ended", marks=pytest.mark.slow),
        pytest.param("killed", True, 2, "its process has ended", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_is_dead_or_stopped_ends_the_workers_with_a_message(
    tmp_path: Path, fault: str, is_tolerant: bool, n_masters: int, reason: str
) -> None:
    # The server evaluates in line, and is killed or stopped there by its model.
    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    (tmp_path / "val.txt").write_text("v.h5\n")
    words = (COUNTING, write_numbers(tmp_path), "val.txt", *COUNTED, "--validation", "inline",
             "--worker-timeout", 2, "--masters", n_masters)  # fmt: skip
    more: dict[str, Any] = {"program": IMPATIENT, "is_tolerant": is_tolerant}
    more["environment"] = {"TRAINING_FAULT": f"{fault}-validating:0:0"}
    ended = run_training(tmp_path, 3 + n_masters, *words, **more)
    assert ended.exit_status not in (0, None)
    assert f"the server, rank 0, is lost ({reason})" in ended.output


@pytest.mark.slow
@pytest.mark.parametrize("is_tolerant", [False, True], ids=["plain", "ulfm"])
@pytest.mark.parametrize("where", [0, 2], ids=["server", "worker"])
def test_a_rank_that_is_stopped_at_the_very_end_is_named_and_does_not_keep_the_job_from_ending(
    tmp_path: Path, where: int, is_tolerant: bool
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 1, "--worker-timeout", 5)
    fault = {"TRAINING_FAULT": f"stopped-leaving:{where}:0"}
    ended = run_training(
        tmp_path, 3, *words, is_tolerant=is_tolerant, program=IMPATIENT, environment=fault
    )
    if where:  # all results are written, and the server knows it
        assert ended.exit_status == 0, ended.output
        assert f"rank {where} did not end: killed" in ended.output
        assert counts(tmp_path / "result") == [1] * 100
    else:
        assert ended.exit_status not in (0, None)
        assert ended.output.count("rank 0 has not ended") == 1


@pytest.mark.slow
def test_a_rank_that_is_stopped_in_mpi_finalize_does_not_keep_the_job_from_ending(
    tmp_path: Path,
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 1)
    fault = {"TRAINING_FAULT": "stopped-finalizing:2:0"}
    ended = run_training(tmp_path, 3, *words, program=IMPATIENT, environment=fault)
    assert ended.exit_status == 1, ended.output
    assert counts(tmp_path / "result") == [1] * 100


@pytest.mark.slow
@pytest.mark.parametrize("is_tolerant", [False, True], ids=["plain", "ulfm"])
def test_the_group_of_a_stopped_sub_server_does_not_keep_the_others_from_ending(
    tmp_path: Path, is_tolerant: bool
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 20, "--worker-timeout", 2,
             "--masters", 2)  # fmt: skip
    slow = {"TRAINING_WAIT_SECONDS": "0.01"}
    output = tmp_path / "output.txt"
    with training_job(
        tmp_path, 5, *words, is_tolerant=is_tolerant, program=IMPATIENT, environment=slow
    ) as job:
        wait_until(lambda: "epoch  1/" in output.read_text())
        rank_of(job, 1).suspend()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 0, ended.output
    assert "the sub-server, rank 1, is lost (silent for 3 s)" in ended.output
    assert [record["examples"] for record in epochs(tmp_path / "result")] == [100] * 20


@pytest.mark.slow
def test_the_group_of_a_sub_server_that_was_stopped_for_a_while_begins_anew(tmp_path: Path) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 40, "--worker-timeout", 1,
             "--masters", 2)  # fmt: skip
    output = tmp_path / "output.txt"
    with training_job(tmp_path, 5, *words, environment={"TRAINING_WAIT_SECONDS": "0.01"}) as job:
        wait_until(lambda: "epoch  1/" in output.read_text())
        rank_of(job, 1).suspend()
        wait_until(lambda: "rank 3 is lost" in output.read_text())
        rank_of(job, 1).resume()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 0, ended.output
    assert "rank 3 is back" in ended.output
    assert counts(tmp_path / "result") == [40] * 100


@pytest.mark.slow
@pytest.mark.parametrize("is_tolerant", [False, True], ids=["plain", "ulfm"])
def test_a_sub_server_whose_workers_are_all_lost_does_not_end_the_others(
    tmp_path: Path, is_tolerant: bool
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 20, "--worker-timeout", 3,
             "--masters", 2)  # fmt: skip
    environment = {"TRAINING_FAULT": "stop:3:5", "TRAINING_WAIT_SECONDS": "0.01"}
    ended = run_training(
        tmp_path, 5, *words, is_tolerant=is_tolerant, program=IMPATIENT, environment=environment
    )
    assert ended.exit_status == 0, ended.output
    assert "rank 3 is lost (silent for 3 s)" in ended.output
    assert counts(tmp_path / "result") == [20] * 100


@pytest.mark.slow
def test_workers_whose_server_and_sub_server_are_stopped_end_with_a_message(tmp_path: Path) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 400, "--worker-timeout", 1,
             "--masters", 1)  # fmt: skip
    slow = {"TRAINING_WAIT_SECONDS": "0.01"}
    output = tmp_path / "output.txt"
    with training_job(tmp_path, 3, *words, program=IMPATIENT, environment=slow) as job:
        wait_until(lambda: "epoch   1/" in output.read_text())
        rank_of(job, 0).suspend()
        rank_of(job, 1).suspend()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 1, ended.output
    assert "the sub-server, rank 1, is lost (silent for 3 s)" in ended.output
    assert "rank 0 has not ended" in ended.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "is_tolerant", "words"),
    [
        ("inline", False, "the server, rank 0, is lost (silent for 3 s)"),
        ("inline", True, "the server, rank 0, is lost (silent for 3 s)"),
        ("thread", False, "validation hangs; see whether its files can be read"),
    ],
    ids=["plain", "ulfm", "thread"],
)
def test_a_server_that_hangs_without_being_stopped_ends_the_job_with_a_message(
    tmp_path: Path, mode: str, is_tolerant: bool, words: str
) -> None:
    write_file(tmp_path / "v.h5", [0, 1], [0, 0])
    (tmp_path / "val.txt").write_text("v.h5\n")
    arguments = (COUNTING, write_numbers(tmp_path), "val.txt", *COUNTED, "--validation", mode,
                 "--epochs", 2, "--worker-timeout", 1)  # fmt: skip
    environment = {"TRAINING_FAULT": "hung-validating:0:0", "TRAINING_WAIT_SECONDS": "0.01"}
    ended = run_training(
        tmp_path, 3, *arguments, is_tolerant=is_tolerant, program=IMPATIENT, environment=environment
    )
    assert ended.exit_status not in (0, None)
    assert words in ended.output


@pytest.mark.parametrize(
    "is_tolerant", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["ulfm", "plain"]
)
def test_a_run_that_is_refused_late_ends_with_the_exit_code_of_the_command_line(
    tmp_path: Path, is_tolerant: bool
) -> None:
    listing, out = write_numbers(tmp_path), tmp_path / "result"
    overlapiter.mpi.train(COUNTING, listing, **COUNTED_HERE, epochs=1, out=out)
    words = (COUNTING, listing, *COUNTED, "--epochs", 1, "--batch", 5)
    ended = run_training(tmp_path, 3, *words, is_tolerant=is_tolerant)
    assert ended.exit_status == 2
    assert ended.output.count("holds the checkpoint of a run with 2, not 5") == 1


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_at_the_start_is_named_and_does_not_keep_the_job_from_ending(
    tmp_path: Path, stopped: int
) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED, "--worker-timeout", 1)
    environment = {"STOPPED_RANK": str(stopped)}
    ended = run_training(tmp_path, 3, *words, program=IMPATIENT, environment=environment)
    assert ended.exit_status == 1, ended.output
    named = "rank 1 did not start in 8 s" if stopped else "rank 0 has not ended"
    assert named in ended.output


#: Starts a rank; rank 1 is interrupted while it starts MPI, and the others start after that.
INTERRUPTS_AT_THE_START = """
sockets() { ls -l /proc/$$/fd 2>&1 | grep -c socket: ; }
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
    before=$(sockets)
    {
        while [ "$(sockets)" = "$before" ]; do sleep 0.01; done
        kill -TERM $$; touch sent
    } &
else
    while [ ! -e sent ]; do sleep 0.01; done
fi
exec "$@"
"""


def test_a_rank_that_is_interrupted_while_it_starts_mpi_ends_the_job(tmp_path: Path) -> None:
    words = (COUNTING, write_numbers(tmp_path), *COUNTED)
    ended = run_training(tmp_path, 3, *words, wrapper=("sh", "-c", INTERRUPTS_AT_THE_START, "sh"))
    assert ended.exit_status == 130, ended.output
    assert "rank 1 is interrupted as it starts; start again" in ended.output


def slow_to_look(tmp_path: Path) -> tuple[object, ...]:
    """Return the words of a run whose server looks at its files until there is one "stopped"."""
    (tmp_path / "data.py").write_text(
        "import os, pathlib, time\n"
        "from overlapiter.mpi.training.data import Hdf5File\n"
        "class Data(Hdf5File):\n"
        "    def __init__(self, path):\n"
        "        super().__init__(path, ('features', 'labels'))\n"
        "        if os.environ['OMPI_COMM_WORLD_RANK'] == '0':\n"
        "            pathlib.Path('looking').touch()\n"
        "            while not pathlib.Path('stopped').exists():\n"
        "                time.sleep(0.01)\n"
    )
    return COUNTING, write_numbers(tmp_path), *COUNTED, "--epochs", 2, "--data", "data.py:Data"


def test_a_worker_that_is_killed_while_the_server_looks_at_the_files_is_done_without(
    tmp_path: Path,
) -> None:
    with training_job(tmp_path, 4, *slow_to_look(tmp_path), is_tolerant=True) as job:
        wait_until((tmp_path / "looking").exists)
        killed = rank_of(job, 2)
        killed.kill()
        wait_until(lambda: not killed.is_running())  # the launcher knows it
        (tmp_path / "stopped").touch()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 0, ended.output
    assert "rank 2 is lost" in ended.output
    assert counts(tmp_path / "result") == TWICE


def test_a_worker_that_is_interrupted_while_the_server_looks_at_the_files_ends_the_job(
    tmp_path: Path,
) -> None:
    with training_job(tmp_path, 3, *slow_to_look(tmp_path)) as job:
        wait_until((tmp_path / "looking").exists)
        rank_of(job, 2).terminate()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 130, ended.output
    assert "rank 2 is interrupted as it starts; start again" in ended.output


def test_a_server_that_is_interrupted_while_it_looks_at_the_files_ends_the_others_in_order(
    tmp_path: Path,
) -> None:
    with training_job(tmp_path, 3, *slow_to_look(tmp_path), "--worker-timeout", 40) as job:
        wait_until((tmp_path / "looking").exists)
        began = time.monotonic()
        rank_of(job, 0).send_signal(signal.SIGINT)
        ended = end_of(tmp_path, job)
    assert ended.exit_status in (1, 130), ended.output  # of the rank that mpiexec hears first
    assert "Traceback" not in ended.output
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_the_server_looks_at_the_files_holds_up_no_other_worker(
    tmp_path: Path,
) -> None:
    words = slow_to_look(tmp_path)
    # One that has not started is waited for a minute, and the others must be patient for longer.
    with training_job(tmp_path, 6, *words, "--worker-timeout", 40) as job:
        wait_until((tmp_path / "looking").exists)
        rank_of(job, 2).suspend()
        (tmp_path / "stopped").touch()
        ended = end_of(tmp_path, job)
    assert ended.exit_status == 0, ended.output
    assert counts(tmp_path / "result") == TWICE


@pytest.mark.slow
def test_a_server_that_hangs_as_it_builds_its_model_ends_the_others_that_get_a_long_plan(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.py").write_text(
        "import os, threading\n"
        "from tests.mpi.training import counting\n"
        "def build_model():\n"
        "    if os.environ['OMPI_COMM_WORLD_RANK'] == '0':\n"
        "        threading.Event().wait()\n"
        "    return counting.build_model()\n"
    )
    listing = write_numbers(tmp_path, (20_000,))
    words = ("model.py", listing, "--piece-examples", 1, "--worker-timeout", 1)
    # Of such messages only the beginning arrives before rank 0 looks for the answer.
    environment = {"OMPI_MCA_btl": "self,tcp"}
    ended = run_training(tmp_path, 3, *words, program=IMPATIENT, environment=environment)
    assert ended.exit_status == 1, ended.output
    assert "the server, rank 0, is lost (silent for 60 s)" in ended.output


def test_a_sub_server_that_cannot_start_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import os\n"
        "from tests.mpi.training import counting\n"
        "def build_model():\n"
        "    if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "        raise RuntimeError('there is no GPU')\n"
        "    return counting.build_model()\n"
    )
    words = ("model.py", write_numbers(tmp_path), *COUNTED, "--masters", 2)
    ended = run_training(tmp_path, 5, *words)
    assert ended.exit_status == 1
    assert "its sub-server, rank 1, cannot go on" in ended.output
    assert "there is no GPU" in ended.output


SCRIPT = """
import atexit, os, pathlib, sys

atexit.register(pathlib.Path("ended" + os.environ["OMPI_COMM_WORLD_RANK"]).touch)
import overlapiter.mpi
from tests.mpi.training.counting import build_model

overlapiter.mpi.train(build_model, "numbers.txt", epochs=1, batch=2)
sys.exit(3)
"""


def test_a_script_that_survives_deaths_ends_as_it_says_where_there_was_none(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    launcher = ("mpiexec", "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm")
    words = (*launcher, "-n", "2", sys.executable, "-c", SCRIPT)
    environment = ENVIRONMENT | WITHOUT
    ended = subprocess.run(words, cwd=tmp_path, env=environment, timeout=100, check=False)
    assert ended.returncode == 3
    assert sorted(path.name for path in tmp_path.glob("ended*")) == ["ended0", "ended1"]
