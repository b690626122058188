"""Several processes that stage the same files: one copies each, and none waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from overlapiter.store import waiting as waiting_module
from overlapiter.store.outcome import Outcome
from tests.store.stagers import Setting, contents_of
from tests.support import staged

COPIED, FOUND, BUSY = Outcome.COPIED, Outcome.FOUND, Outcome.BUSY
N_FILES = 12


@pytest.fixture
def copying(act, tmp_path):
    """Return a process that has claimed all files and copies the first one until told to go on."""

    def copy():
        setting = Setting(tmp_path, contents_of(N_FILES))
        is_reading, gate, found = threading.Event(), threading.Event(), []
        setting.origin.before_read = lambda _path: is_reading.set() or gate.wait()
        thread = threading.Thread(target=lambda: found.extend(setting.outcomes(*setting.paths)))
        thread.start()
        is_reading.wait()
        yield "claimed"
        gate.set()
        thread.join()
        yield found
        setting.close()
        yield None

    actor = act(copy)
    assert actor.step() == "claimed"
    return actor


def waiting(act, tmp_path, patience_seconds=60.0, rounds=(slice(None),)):
    """Return a process that stages the same files, and yields what became of them, and how long."""

    def wait():
        waiting_module._PATIENCE_SECONDS = patience_seconds
        setting = Setting(tmp_path, contents_of(N_FILES), run=2)
        for files in rounds:
            begun = time.monotonic()
            outcomes = setting.outcomes(*setting.paths[files])
            yield outcomes, time.monotonic() - begun, setting.said
        setting.close()
        yield setting.origin.n_opened.total()

    return act(wait)


def test_a_process_waits_for_what_another_one_copies(act, copying, tmp_path):
    waiter = waiting(act, tmp_path)
    waiter.begin()
    assert copying.step() == [COPIED] * N_FILES
    assert waiter.answer()[0] == [FOUND] * N_FILES
    assert waiter.step() == 0


@pytest.mark.parametrize("is_waiting", [False, True])
def test_what_a_killed_process_was_copying_the_next_one_copies(act, copying, tmp_path, is_waiting):
    waiter = waiting(act, tmp_path)
    if is_waiting:
        waiter.begin()
        while not staged.query(tmp_path / "tier-0", "SELECT 1 FROM run WHERE id=2"):
            time.sleep(0.001)
    else:
        copying.kill()
        waiter.begin()
    copying.kill()
    outcomes, _, said = waiter.answer()
    assert outcomes == [COPIED] * N_FILES
    assert said == []
    assert waiter.step() == N_FILES
    assert staged.being_copied(tmp_path / "tier-0") == set()
    staged.assert_accounted(tmp_path / "tier-0")


def test_a_stopped_process_is_waited_for_once_and_its_files_are_read_from_the_source(
    act, copying, tmp_path
):
    copying.signal(signal.SIGSTOP)
    all_files = slice(None)
    rounds = (slice(4), slice(4, None), all_files, all_files, all_files)
    waiter = waiting(act, tmp_path, patience_seconds=1.0, rounds=rounds)
    outcomes, took_seconds, (text,) = waiter.step()
    assert outcomes == [BUSY] * 4
    assert took_seconds > 1.0
    assert "was stopped" in text
    others, *again = [waiter.step() for _ in range(3)]  # the process that is stopped is known
    assert others[0] == [BUSY] * (N_FILES - 4)
    assert others[1] < 1.0
    assert [outcomes for outcomes, *_ in again] == [[BUSY] * N_FILES] * 2
    assert min(took_seconds for _, took_seconds, _ in again) < 1.0
    assert again[-1][-1] == [text]
    os.kill(copying.pid, signal.SIGCONT)
    assert copying.step() == [COPIED] * N_FILES
    assert waiter.step()[0] == [FOUND] * N_FILES
    copying.step()


def test_a_process_that_is_suspended_with_the_one_that_copies_has_not_waited_meanwhile(
    act, copying, tmp_path
):
    waiter = waiting(act, tmp_path, patience_seconds=3.0)
    waiter.begin()
    while not staged.query(tmp_path / "tier-0", "SELECT 1 FROM run WHERE id=2"):
        time.sleep(0.001)
    time.sleep(0.2)  # it has looked at what the other one has written
    for actor in (copying, waiter):
        actor.signal(signal.SIGSTOP)
    time.sleep(3.2)
    for actor in (waiter, copying):
        actor.signal(signal.SIGCONT)
    time.sleep(0.2)
    assert copying.step() == [COPIED] * N_FILES
    outcomes, _, said = waiter.answer()
    assert (outcomes, said) == ([FOUND] * N_FILES, [])


def test_a_process_that_writes_is_waited_for_however_long_it_takes(act, tmp_path):
    def copy():
        setting = Setting(tmp_path, contents_of(1, 3 << 20))  # in pieces
        setting.origin.before_read = lambda _path: time.sleep(0.25)
        yield "ready"
        yield setting.outcomes(*setting.paths)

    def wait():
        waiting_module._PATIENCE_SECONDS = 2.0  # far more than a piece takes, less than all of them
        setting = Setting(tmp_path, contents_of(1, 3 << 20), run=2)
        yield "ready"
        yield setting.outcomes(*setting.paths), setting.said

    copier, waiter = act(copy), act(wait)
    assert [copier.step(), waiter.step()] == ["ready"] * 2
    copier.begin()
    while not staged.being_copied(tmp_path / "tier-0"):
        time.sleep(0.001)
    assert waiter.step() == ([FOUND], [])
    assert copier.answer() == [COPIED]


def test_of_what_several_processes_want_at_once_each_file_is_read_once(act, tmp_path):
    def stage(number):
        def steps():
            setting = Setting(tmp_path, contents_of(64), run=number + 1)
            setting.origin.before_read = lambda _path: time.sleep(0.0005)
            yield "ready"
            for start in (0, 8, 16, 24):  # each begins elsewhere
                part = [setting.paths[(start + 8 * number + n) % 32] for n in range(8)]
                assert set(setting.outcomes(*part)) <= {COPIED, FOUND}
            setting.close()
            yield setting.origin.n_opened.total()

        return steps

    actors = [act(stage(number)) for number in range(4)]
    for actor in actors:
        actor.step()
    for actor in actors:
        actor.begin()
    assert sum(actor.answer() for actor in actors) == 32
    assert staged.charged_bytes(tmp_path / "tier-0") == 32 * 4096
