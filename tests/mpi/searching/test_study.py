"""Groups share the trials of a study through its journal, and finish those of lost groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapiter.errors import OptionError, TrainingError
from overlapiter.mpi.searching.asked import Asked
from overlapiter.mpi.searching.space import Space, space_of
from overlapiter.mpi.searching.study import Study, Trial, journal_bytes
from tests.mpi.waiting import wait_until

pytest.importorskip("optuna")

SPACE = space_of({"space": {"learning_rate": {"low": 1e-4, "high": 0.1, "log": True}}}, {})


def open_study(out: Path, n_trials: int, space: Space = SPACE, **more) -> Study:
    return Study(str(out), space, more.pop("metric", "val_accuracy"), n_trials, 0, **more)


def nobody_is_lost(_owner: str) -> bool:
    return False


def ask(study: Study, owner: str = "run:0", is_lost=nobody_is_lost) -> Asked:
    asked = study.ask(owner, is_lost)
    assert asked is not None
    return asked


def report(asked: Asked, *values: float) -> None:
    for epoch, value in enumerate(values, 1):
        asked.on_epoch({"epoch": epoch, "val_accuracy": value, "val_loss": -value})


def run_trial(study: Study, *values: float) -> Trial:
    asked = ask(study)
    report(asked, *values)
    return study.tell(asked)


def test_the_value_after_the_last_epoch_counts(tmp_path: Path) -> None:
    study = open_study(tmp_path, 3)
    run_trial(study, 0.9, 0.5)
    best = run_trial(study, 0.1, 0.6)
    assert study.best() == best
    assert (best.state, best.value, best.n_epochs) == ("complete", 0.6, 2)


def test_of_losses_the_smallest_is_best(tmp_path: Path) -> None:
    study = open_study(tmp_path, 2, metric="val_loss")
    best = run_trial(study, 0.7)
    run_trial(study, 0.6)
    assert study.best() == best


def test_groups_begin_no_more_trials_than_there_are_to_be(tmp_path: Path) -> None:
    studies = [open_study(tmp_path, 3) for _ in range(4)]
    asked = [study.ask(f"run:{i}", nobody_is_lost) for i, study in enumerate(studies)]
    assert [each.number for each in asked if each] == [0, 1, 2]
    assert not studies[3].is_over()
    for study, each in zip(studies[:3], asked[:3], strict=True):
        report(each, 0.5)
        study.tell(each)
    assert studies[3].is_over()


def test_what_is_proposed_does_not_depend_on_the_groups(tmp_path: Path) -> None:
    one, first, second = (open_study(tmp_path / name, 4) for name in ("one", "two", "two"))
    alone = [ask(one).values["learning_rate"] for _ in range(4)]
    shared = [ask(study).values["learning_rate"] for study in (first, second, second, first)]
    assert alone == shared
    assert len(set(alone)) == 4


def test_any_seed_and_any_path_will_do(tmp_path: Path) -> None:
    for seed in (-1, 50_000):
        fixed = {"staging": tmp_path / "staging", "source": tmp_path}
        space = space_of({"space": {"batch": [8, 16]}}, fixed)
        study = Study(str(tmp_path / str(seed)), space, "val_loss", 2, seed)
        assert ask(study).values["batch"] in (8, 16)


def test_each_trial_has_a_trace_of_its_own(tmp_path: Path) -> None:
    space = space_of({"space": {"batch": [8, 16]}}, {"trace": tmp_path / "trace.json"})
    study = open_study(tmp_path, 2, space)
    traces = [ask(study).values["trace"] for _ in range(2)]
    assert traces == [str(tmp_path / f"trace.{number}.json") for number in ("0000", "0001")]


def test_the_trial_of_a_lost_group_is_done_again_where_it_stood(tmp_path: Path) -> None:
    mine, theirs = open_study(tmp_path, 1), open_study(tmp_path, 1)
    lost = ask(theirs, "run:1")
    report(lost, 0.25)
    assert mine.ask("run:0", nobody_is_lost) is None
    again = ask(mine, "run:0", "run:1".__eq__)
    assert again.values == lost.values
    assert again.is_continued
    assert not lost.is_continued
    again.on_epoch({"epoch": 2, "val_accuracy": 0.5})
    trial = mine.tell(again)
    assert [each.number for each in mine.trials()] == [trial.number]
    assert (trial.value, trial.n_epochs) == (0.5, 2)
    assert mine.is_over()


def test_a_trial_that_ended_as_its_group_was_lost_keeps_its_value(tmp_path: Path) -> None:
    study = open_study(tmp_path, 1)
    report(ask(study, "run:1"), 0.25)
    again = ask(study, "run:0", "run:1".__eq__)
    assert study.tell(again).value == 0.25


def test_two_groups_that_notice_a_loss_do_the_trial_once(tmp_path: Path) -> None:
    lost, one, other = (open_study(tmp_path, 2) for _ in range(3))
    ask(lost, "run:1")
    assert ask(one, "run:0", "run:1".__eq__).is_continued
    assert not ask(other, "run:2", "run:1".__eq__).is_continued
    assert other.ask("run:2", "run:1".__eq__) is None


def test_a_trial_that_ends_just_as_it_is_given_to_another_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = open_study(tmp_path, 1), open_study(tmp_path, 1)
    late = ask(theirs, "run:1")
    report(late, 0.25)
    give = mine._study.tell

    def end_before(*how, **more):
        theirs.tell(late)
        give(*how, **more)

    monkeypatch.setattr(mine._study, "tell", end_before)
    assert mine.ask("run:0", "run:1".__eq__) is None
    assert [(trial.state, trial.value) for trial in mine.trials()] == [("complete", 0.25)]
    assert mine.is_over()


def test_a_group_gives_a_trial_back_whose_ranks_were_lost(tmp_path: Path) -> None:
    study = open_study(tmp_path, 1)
    asked = ask(study)
    study.put_back(asked)
    again = ask(study)
    assert again.values == asked.values
    assert again.is_continued


def test_the_trial_of_a_silent_group_begins_anew_elsewhere_and_its_late_result_does_not_count(
    tmp_path: Path,
) -> None:
    mine, theirs = open_study(tmp_path, 1), open_study(tmp_path, 1)
    silent, said = ask(theirs, "run:1:3"), []
    assert mine.ask("run:0:0", nobody_is_lost, said.append) is None
    assert mine.ask("run:0:0", nobody_is_lost, said.append) is None  # silent, and not for long
    mine.timeout_seconds = 0.0
    again = mine.ask("run:0:0", nobody_is_lost, said.append)
    assert again is not None
    assert said == ["rank 3 is silent for 0 s; another group does trial 0"]
    assert not again.is_continued  # the silent one may write to the same files yet
    assert again.values["out"] != silent.values["out"]
    assert {**again.values, "out": ""} == {**silent.values, "out": ""}
    assert silent.on_epoch({"epoch": 1, "val_accuracy": 0.9})  # it is back, and is to stop
    assert theirs.tell(silent) is None
    report(again, 0.5)
    mine.tell(again)
    assert [trial.value for trial in mine.trials()] == [0.5]


def test_a_group_that_gives_signs_of_life_keeps_its_trial(tmp_path: Path) -> None:
    mine, theirs = open_study(tmp_path, 1), open_study(tmp_path, 1)
    theirs.timeout_seconds = 0.0  # a sign of life each time
    asked = ask(theirs, "run:1:3")
    mine.timeout_seconds = 0.0
    for _ in range(3):
        asked.beat()
        assert mine.ask("run:0:0", nobody_is_lost) is None


def test_a_group_whose_main_thread_is_busy_gives_signs_of_life_from_another(tmp_path: Path) -> None:
    study = open_study(tmp_path, 1)
    study.timeout_seconds = 0.05
    with ask(study).beating():
        for _ in range(2):
            before = journal_bytes(str(tmp_path))
            wait_until(lambda before=before: journal_bytes(str(tmp_path)) > before)


def test_a_group_whose_main_thread_hangs_for_long_gives_no_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapiter.mpi.searching.asked.PATIENCE", 0)
    mine, theirs = open_study(tmp_path, 1), open_study(tmp_path, 1)
    mine.timeout_seconds = theirs.timeout_seconds = 0.05
    with ask(theirs, "run:1:3").beating():
        wait_until(lambda: mine.ask("run:0:0", nobody_is_lost))


def test_a_report_counts_though_optunas_lock_was_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optuna.storages.journal import JournalFileSymlinkLock

    release = JournalFileSymlinkLock.release

    def lose(lock: JournalFileSymlinkLock) -> None:
        release(lock)
        release(lock)  # as if another process had taken it meanwhile

    study = open_study(tmp_path, 1)
    asked = ask(study)
    with monkeypatch.context() as patch:
        patch.setattr(JournalFileSymlinkLock, "release", lose)
        assert not asked.on_epoch({"epoch": 1, "val_accuracy": 0.5})
    assert study.tell(asked).value == 0.5


def test_a_trial_that_ends_whoever_trains_it_has_failed(tmp_path: Path) -> None:
    studies = [open_study(tmp_path, 2) for _ in range(4)]
    ask(studies[0], "run:0:0")
    for rank in (1, 2):
        ask(studies[rank], f"run:{rank}:{rank}", f"run:{rank - 1}:{rank - 1}".__eq__)
    fresh = ask(studies[3], "run:3:3", "run:2:2".__eq__)
    assert not fresh.is_continued
    (failed,) = (trial for trial in studies[3].trials() if trial.state == "failed")
    assert failed.reason == "rank 2 is dead, as others were before"


def test_a_trial_that_costs_ranks_again_and_again_has_failed(tmp_path: Path) -> None:
    study = open_study(tmp_path, 1)
    for _ in range(3):
        study.put_back(ask(study), "rank 1 is silent for 3 s")
    assert study.is_over()
    assert [trial.reason for trial in study.trials()] == [
        "rank 1 is silent for 3 s, as others were before"
    ]


def test_a_later_run_goes_on(tmp_path: Path) -> None:
    first = open_study(tmp_path, 2)
    run_trial(first, 0.5)
    ask(first, "run:0")  # and the job ends
    later = open_study(tmp_path, 3)
    assert ask(later, "later:0", lambda owner: owner != "later:0").is_continued
    fresh = ask(later, "later:0")
    assert not fresh.is_continued
    assert later.ask("later:0", nobody_is_lost) is None


def test_a_search_goes_on_where_its_directory_was_moved_to(tmp_path: Path) -> None:
    run_trial(open_study(tmp_path / "one", 2), 0.5)
    ask(open_study(tmp_path / "one", 2), "run:1")
    (tmp_path / "one").rename(tmp_path / "two")
    moved = open_study(tmp_path / "two", 2)
    assert moved.best().out == str(tmp_path / "two" / "trials" / "0000")
    assert ask(moved, "run:0", "run:1".__eq__).values["out"] == str(tmp_path / "two/trials/0001")


def test_a_trial_that_is_worse_than_the_median_ends_early(tmp_path: Path) -> None:
    study = open_study(tmp_path, 8)
    for _ in range(6):
        run_trial(study, 0.5, 0.6, 0.7)
    asked = ask(study)
    assert not asked.on_epoch({"epoch": 1, "val_accuracy": 0.4})  # too early to tell
    assert asked.on_epoch({"epoch": 2, "val_accuracy": 0.4})
    assert study.tell(asked).state == "pruned"
    patient = open_study(tmp_path, 8, is_pruning=False)
    asked = ask(patient)
    assert not any(asked.on_epoch({"epoch": e, "val_accuracy": 0.1}) for e in (1, 2, 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_trial_without_a_value_has_failed(tmp_path: Path, value: float) -> None:
    study = open_study(tmp_path, 2)
    run_trial(study, 0.5)
    trial = run_trial(study, value)
    assert trial.state == "failed"
    assert "after the last epoch" in trial.reason
    assert study.is_over()
    assert study.best().value == 0.5


def test_a_search_ends_if_all_trials_fail(tmp_path: Path) -> None:
    study = open_study(tmp_path, 20)
    for number in range(5):
        asked = ask(study)
        asked.reason = "the disk is on fire"
        if number < 4:
            assert study.tell(asked).state == "failed"
    with pytest.raises(TrainingError, match=r"first 5 trials have all failed.* disk is on fire"):
        study.tell(asked)


def test_half_a_line_of_the_journal_that_a_full_disk_has_left_does_not_spoil_it(
    tmp_path: Path,
) -> None:
    study = open_study(tmp_path, 3)
    run_trial(study, 0.5)
    for each in (study, open_study(tmp_path, 3)):
        with (tmp_path / "study.journal").open("ab") as journal:
            journal.write(b'{"op_code": 8, "wor')
        run_trial(each, 0.6)
    assert [trial.value for trial in open_study(tmp_path, 3).trials()] == [0.5, 0.6, 0.6]


@pytest.mark.parametrize("line", ["no JSON", '{"op_code": 99, "worker_id": "1"}', '{"code": 1}'])
def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    run_trial(open_study(tmp_path, 2), 0.5)
    with (tmp_path / "study.journal").open("a") as journal:
        journal.write(f"{line}\n" * 2)
    with pytest.raises(OptionError, match=r"study\.journal cannot be read .*name another --out"):
        open_study(tmp_path, 2)


def test_a_directory_of_another_search_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path, 2)
    with pytest.raises(OptionError, match="holds a search with space"):
        open_study(tmp_path, 2, space_of({"space": {"batch": [8, 16]}}, {}))
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="file cannot be written"):
        open_study(tmp_path / "file", 2)
    with pytest.raises(OptionError, match="holds a search with metric val_accuracy"):
        open_study(tmp_path, 2, metric="val_loss")
