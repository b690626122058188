"""Claims: one owner at a time, and what is left of those that died; with locks and without."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlapiter.staging import claim as claim_module
from overlapiter.staging import holder as holder_module
from overlapiter.staging.claim import Claims
from overlapiter.staging.folders import Folder
from overlapiter.staging.holder import PATIENCE_SECONDS, boot_number, is_stale, new_tag
from overlapiter.staging.process_id import ProcessId
from overlapiter.staging.usage import BusyError, UsageFile
from tests.staging.processes import forked, without_locks

KEY = "5d41402abc4b2a76"


@pytest.fixture(params=[0, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param:
        without_locks(monkeypatch, request.param)
    return tmp_path


@pytest.fixture
def lockless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_locks(monkeypatch)
    return tmp_path


def claims(folder: Path) -> Claims:
    return Claims(Folder(str(folder)))


def held_and(folder: Path, what: signal.Signals) -> int:
    """Return a child that holds the claim, with 3 bytes reserved, and was stopped or killed."""

    def hold() -> None:
        with claims(folder).hold(KEY) as partial:
            os.ftruncate(partial.fd, 3)
            os.kill(os.getpid(), what)

    pid = forked(hold)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    assert os.WIFSTOPPED(status) or os.WIFSIGNALED(status)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)


def test_a_claim_is_held_by_one_and_leaves_nothing(folder, monkeypatch):
    monkeypatch.setattr(claim_module, "_PATIENCE_SECONDS", 0.01)
    with claims(folder).hold(KEY) as partial:
        assert partial.left is None
        with claims(folder).hold(KEY) as other:
            assert other is None
    assert list(folder.iterdir()) == []
    with claims(folder).hold(KEY) as partial:
        assert partial is not None


def test_the_claim_of_a_process_that_was_killed_is_taken_over_with_its_reservation(folder):
    held_and(folder, signal.SIGKILL)
    before = time.monotonic()
    with claims(folder).hold(KEY) as partial:
        assert time.monotonic() - before < 4  # of a patience of 5
        assert partial.remove_left() == 3
        assert partial.remove_left() == 0
    assert list(folder.iterdir()) == []


def noted_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list to which every pause is added from now on."""
    pauses: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: pauses.append(seconds) or sleep(seconds))
    return pauses


def test_a_process_that_was_stopped_is_waited_for_once_and_not_for_long(folder, monkeypatch):
    monkeypatch.setattr(claim_module, "_PATIENCE_SECONDS", 0.2)
    pid = held_and(folder, signal.SIGSTOP)
    ours = claims(folder)
    pauses = noted_pauses(monkeypatch)
    for is_waited_for in (True, False):
        pauses.clear()
        with ours.hold(KEY) as partial:
            assert partial is None
        assert bool(pauses) == is_waited_for
        assert sum(pauses) < 1
    assert ours.sweep(pytest.fail) == 0
    end(pid)


def test_sweeping_removes_what_the_dead_left_and_tells_what_was_reserved(folder):
    held_and(folder, signal.SIGKILL)
    with claims(folder).hold("other") as mine:
        freed: list[int] = []
        assert claims(folder).sweep(lambda remove: freed.append(remove()) or 0) == 1
        assert freed == [3]
        assert all(path.name.startswith("other") for path in folder.iterdir())
        assert mine is not None
    assert list(folder.iterdir()) == []


def test_without_locks_the_claim_says_whose_it_is_from_the_first_moment_on(lockless):
    with claims(lockless).hold(KEY):
        tag = os.readlink(lockless / f"{KEY}.claim")
        assert (lockless / f"{KEY}.{tag}").is_file()
        assert not is_stale(tag, 1e9)
        own = ProcessId.this_process()
        assert all(part in tag for part in (own.boot_id, str(own.pid), str(own.start_ticks)))


def test_without_locks_something_in_the_place_of_a_claim_blocks_nobody_for_ever(
    lockless, monkeypatch
):
    monkeypatch.setattr(claim_module, "_PATIENCE_SECONDS", 0.01)
    claim = lockless / f"{KEY}.claim"
    claim.write_text("rubbish")
    with claims(lockless).hold(KEY) as partial:
        assert partial is None
    os.utime(claim, (1, 1))
    with claims(lockless).hold(KEY) as partial:
        assert partial is not None


# --- who is dead ------------------------------------------------------------------------------


def test_a_tag_is_stale_once_its_process_has_ended_and_not_before():
    read_end, write_end = os.pipe()
    tags_read, tags_write = os.pipe()

    def live() -> None:
        os.write(tags_write, new_tag().encode())
        os.read(read_end, 1)

    pid = forked(live)
    tag = os.read(tags_read, 1000).decode()
    assert not is_stale(tag, 1e9)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert is_stale(tag, 0)  # not reaped yet
    os.waitpid(pid, 0)
    assert is_stale(tag, 0)
    for fd in (read_end, write_end, tags_read, tags_write):
        os.close(fd)


def tag_of(**changes: object) -> str:
    facts = {**ProcessId.this_process().facts(), **changes}
    names = ("pid", "start_ticks", "pid_namespace", "boot_id", "host")
    return "~".join(["0", *(str(facts[name]) for name in names)])


def test_a_pid_that_was_given_to_another_process_and_another_boot_are_no_sign_of_life():
    assert not is_stale(tag_of(), 1e9)
    assert is_stale(tag_of(start_ticks=1), 0)
    assert is_stale(tag_of(boot_id="0dc99f51-b5e3-45e6-9a66-000000000000"), 0)


@pytest.mark.parametrize(
    "tag", [tag_of(pid_namespace=1), tag_of(host="elsewhere"), "", "rubbish", "a~b~c~d~e~f"]
)
def test_who_cannot_be_seen_from_here_is_dead_when_it_has_written_nothing_for_long(tag):
    assert not is_stale(tag, PATIENCE_SECONDS - 1)
    assert is_stale(tag, PATIENCE_SECONDS + 1)


def test_a_process_in_another_pid_namespace_cannot_be_seen_from_here():
    program = "from overlapiter.staging.holder import new_tag; print(new_tag())"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to make a namespace: {done.stderr}")
    tag = done.stdout.strip()
    assert tag.startswith("0~1~")  # a number that is another process here
    assert not is_stale(tag, PATIENCE_SECONDS - 1)
    assert is_stale(tag, PATIENCE_SECONDS + 1)


def test_a_number_stands_for_this_boot(monkeypatch):
    assert boot_number() == boot_number() > 0
    other = ProcessId("here", "another", 1, 1, 1)
    monkeypatch.setattr(holder_module.ProcessId, "this_process", lambda: other)
    assert boot_number.__wrapped__() != boot_number()


# --- the usage file without locks -------------------------------------------------------------


def test_without_locks_the_count_of_a_process_that_was_killed_is_taken_over(lockless):
    def count_and_die() -> None:
        with UsageFile(str(lockless)).hold() as usage:
            usage.used_bytes = 7
        with UsageFile(str(lockless)).hold():
            os.kill(os.getpid(), signal.SIGKILL)

    pid = forked(count_and_die)
    os.waitpid(pid, 0)
    (held,) = lockless.iterdir()
    assert held.name != "overlapiter.usage"
    before = time.monotonic()
    with UsageFile(str(lockless)).hold() as usage:
        assert usage.used_bytes == 7
    assert time.monotonic() - before < 30  # of a patience of 60
    assert [path.name for path in lockless.iterdir()] == ["overlapiter.usage"]


def test_without_locks_the_count_of_a_stopped_process_is_not_waited_for(lockless, monkeypatch):
    def stop() -> None:
        with UsageFile(str(lockless)).hold():
            os.kill(os.getpid(), signal.SIGSTOP)

    pid = forked(stop)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    ours = UsageFile(str(lockless))
    pauses = noted_pauses(monkeypatch)
    for is_waited_for in (True, False):
        pauses.clear()
        with pytest.raises(BusyError), ours.hold():
            pass
        assert bool(pauses) == is_waited_for
        assert sum(pauses) < 2
    end(pid)
    with ours.hold():
        pass
