"""Interest: what others are about to read, as far as the table tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlapiter.staging import interest as interest_module
from overlapiter.staging.interest import Interest
from overlapiter.staging.records import USERS_FOLDER


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "interest")


def test_what_one_run_wants_the_others_see_and_it_does_not(path):
    one, other = Interest(path, 1), Interest(path, 2)
    assert not other.is_wanted_by_others(["/source/a"])
    one.want(["/source/a"])
    assert other.is_wanted_by_others(["/source/a"])
    assert not one.is_wanted_by_others(["/source/a"])
    assert not other.is_wanted_by_others(["/source/b"])


def test_another_process_sees_it_under_whatever_seed_it_hashes(path):
    Interest(path, 1).want(["/source/a"])
    code = (
        "from overlapiter.staging.interest import Interest;"
        f"print(Interest({path!r}, 2).is_wanted_by_others(['/source/a']))"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code]
        environment = {"PYTHONHASHSEED": seed}
        assert subprocess.check_output(command, env=environment, text=True) == "True\n"


def test_it_ends_after_some_seconds_and_with_the_boot(path, monkeypatch):
    one, other = Interest(path, 1), Interest(path, 2)
    now_ms = interest_module._now_ms()
    monkeypatch.setattr(interest_module, "_now_ms", lambda: now_ms)
    one.want(["/source/a"])
    for later_ms, is_wanted in ((9_000, True), (11_000, False), (-(10**7), False)):
        monkeypatch.setattr(interest_module, "_now_ms", lambda ms=later_ms: now_ms + ms)
        assert other.is_wanted_by_others(["/source/a"]) is is_wanted


def test_a_run_that_is_alone_writes_nothing_until_another_one_is_seen(tmp_path, monkeypatch):
    users = tmp_path / USERS_FOLDER
    users.mkdir()
    (tmp_path / "source-0123").mkdir()
    path = str(tmp_path / "source-0123" / "interest")
    ours = users / "node-7-1-0.json"
    ours.touch()
    one, other = Interest(path, 1), Interest(path, 2)
    one.want(["/source/a"])
    assert not os.path.exists(path)
    theirs = users / "node-7-2-0.json"
    theirs.touch()
    monkeypatch.setattr(interest_module, "_TRUST_SECONDS", -1)
    one = Interest(path, 1)
    one.want(["/source/a"])
    assert other.is_wanted_by_others(["/source/a"])
    theirs.unlink()
    one.want(["/source/b"])
    assert not other.is_wanted_by_others(["/source/b"])
    ours.rename(theirs)
    one.want(["/source/b"])  # our note was not written, or has gone
    assert other.is_wanted_by_others(["/source/b"])


def test_a_link_that_somebody_planted_is_not_written_to(path, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.link(precious, path)
    interest = Interest(path, 1)
    interest.want(["/source/a"])
    assert not interest.is_wanted_by_others(["/source/a"])
    assert precious.read_bytes() == b"precious"


def test_without_a_table_nobody_wants_anything(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("missing/interest", "link"):
        interest = Interest(str(tmp_path / name), 1)
        interest.want(["/source/a"])
        assert not interest.is_wanted_by_others(["/source/a"])
    assert not (tmp_path / "elsewhere").exists()
