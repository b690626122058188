"""Tiers: a copy enters at the fastest one that takes it, sinks, rises, and goes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from overlapiter.store.outcome import Outcome
from tests.store.actors import apart, in_a_process
from tests.store.stagers import Setting, contents_of
from tests.store.stores import BLOCK_BYTES
from tests.support import staged
from tests.support.origins import OLD_NS

COPIED, FOUND, REFUSED = Outcome.COPIED, Outcome.FOUND, Outcome.REFUSED


def staged_one_by_one(setting, *paths):
    """Stage files, each in a part of its own, without evicting any; return the tier of each."""
    for path in paths:
        setting.outcomes(path)
    return [setting.tier_of(path) for path in paths]


def read_bytes():
    """Return what this process has read by now."""
    return int(Path("/proc/self/io").read_text().split()[1])


def evict(setting, tier, *paths):
    """Have files leave a tier; return where they are then, each copy being right."""
    moved = setting.stager.evict(setting.keys(paths), tier, None)
    for path in paths:
        extent = moved.get(setting.stores[0].key_of(path))
        assert extent is None or setting.read(extent) == setting.origin.contents[path]
    return [setting.tier_of(path) for path in paths]


@pytest.mark.parametrize("size_blocks", [1, 300])
@in_a_process
def test_a_file_enters_at_the_fastest_tier_that_has_room(tmp_path, size_blocks):
    contents = contents_of(4, 4096 * size_blocks)
    setting = Setting(tmp_path, contents, 2 * size_blocks, size_blocks)
    assert staged_one_by_one(setting, *setting.paths) == [0, 0, 1, None]
    assert setting.outcomes(setting.paths[3]) == [REFUSED]
    assert [setting.n_blocks(tier) for tier in (0, 1)] == [2 * size_blocks, size_blocks]
    setting.close()


@pytest.mark.parametrize("size_blocks", [10, 300])
@in_a_process
def test_a_file_too_large_for_one_tier_lies_in_another_and_nothing_is_said(tmp_path, size_blocks):
    contents = contents_of(1, 4096 * size_blocks)
    (path,) = contents
    for number, (n_blocks, tiers) in enumerate([((3, None), [1, None]), ((None, 3), [0, None])]):
        setting = Setting(tmp_path / str(number), contents, *n_blocks)
        assert setting.outcomes(path) == [COPIED]
        assert [setting.tier_of(path), *evict(setting, tiers[0], path)] == tiers
        assert setting.said == []
        setting.close()
    setting = Setting(tmp_path / "small", contents, 3, 3)
    assert setting.outcomes(path) == [Outcome.TOO_LARGE]
    (text,) = setting.said
    assert " and in ".join(map(str, setting.directories)) in text
    setting.close()


@in_a_process
def test_a_part_is_staged_in_several_tiers_at_once(tmp_path):
    setting = Setting(tmp_path, contents_of(8), 3, None)
    assert setting.outcomes(*setting.paths) == [COPIED] * 8
    assert sorted(setting.tier_of(path) for path in setting.paths) == [0] * 3 + [1] * 5
    assert [staged.being_copied(directory) for directory in setting.directories] == [set(), set()]
    setting.close()


@pytest.mark.parametrize("size_blocks", [1, 300])
@in_a_process
def test_files_sink_to_the_next_tier_and_go_from_the_last_one(tmp_path, size_blocks):
    setting = Setting(tmp_path, contents_of(2, 4096 * size_blocks), None, None)
    assert staged_one_by_one(setting, *setting.paths) == [0, 0]
    assert evict(setting, 0, *setting.paths) == [1, 1]
    assert setting.n_blocks(0) == 0
    assert evict(setting, 1, *setting.paths) == [None, None]
    assert setting.n_blocks(1) == 0
    assert setting.stager.evict(setting.keys(setting.paths), 1, None) == {}
    setting.close()


@in_a_process
def test_a_large_file_that_moves_is_read_once(tmp_path):
    size_bytes = 300 * BLOCK_BYTES
    setting = Setting(tmp_path, contents_of(1, size_bytes), None, None)
    staged_one_by_one(setting, *setting.paths)
    before = read_bytes()
    setting.stager.evict(setting.keys(setting.paths), 0, None)
    assert size_bytes <= read_bytes() - before < 1.5 * size_bytes
    assert setting.tier_of(setting.paths[0]) == 1
    setting.close()


@in_a_process
def test_files_go_for_good_where_no_slower_tier_has_room(tmp_path):
    setting = Setting(tmp_path, contents_of(3), None, 1)
    assert staged_one_by_one(setting, *setting.paths) == [0, 0, 0]
    assert sorted(evict(setting, 0, *setting.paths), key=str) == [1, None, None]
    setting.close()


@in_a_process
def test_a_damaged_copy_does_not_sink(tmp_path):
    setting = Setting(tmp_path, contents_of(3), None, None)
    staged_one_by_one(setting, *setting.paths)
    staged.flip(setting.directories[0], setting.extent(setting.paths[1]))
    assert evict(setting, 0, *setting.paths) == [1, None, 1]
    assert setting.n_blocks(1) == 2
    setting.close()


@in_a_process
def test_a_file_in_a_slower_tier_is_found_there_and_rises_when_a_faster_one_has_room(tmp_path):
    contents = contents_of(6)
    first = Setting(tmp_path, contents, None, None)
    staged_one_by_one(first, *first.paths)
    assert evict(first, 0, *first.paths) == [1] * 6
    first.close()
    later = Setting(tmp_path, contents, 4, None, run=2)
    for _ in range(3):
        assert later.outcomes(*later.paths) == [FOUND] * 6
    assert sorted(later.tier_of(path) for path in later.paths) == [0] * 4 + [1] * 2
    assert later.origin.n_opened.total() == 0
    assert [later.n_blocks(tier) for tier in (0, 1)] == [4, 2]  # each lies in one tier alone
    assert later.said == []
    later.close()


def test_a_tier_in_memory_that_a_boot_has_emptied_fills_again_from_the_slower_one(tmp_path):
    contents = contents_of(6)

    def before():
        setting = Setting(tmp_path, contents, None, None)
        staged_one_by_one(setting, *setting.paths)
        assert evict(setting, 0, *setting.paths) == [1] * 6
        setting.close()

    def after():
        setting = Setting(tmp_path, contents, None, None, run=2)
        assert setting.outcomes(*setting.paths) == [FOUND] * 6
        assert [setting.tier_of(path) for path in setting.paths] == [0] * 6
        assert setting.origin.n_opened.total() == 0
        setting.close()

    apart(before)
    (tmp_path / "tier-0").rename(tmp_path / "gone")
    apart(after)


@in_a_process
def test_a_damaged_copy_in_a_slower_tier_is_replaced_in_the_faster_one(tmp_path):
    contents = contents_of(2)
    setting = Setting(tmp_path, contents, None, None)
    staged_one_by_one(setting, *setting.paths)
    evict(setting, 0, *setting.paths)
    for path in setting.paths:
        staged.zero(setting.directories[1], setting.extent(path))
    assert setting.outcomes(*setting.paths, suspects=setting.paths) == [COPIED] * 2
    assert [setting.tier_of(path) for path in setting.paths] == [0, 0]
    assert setting.n_blocks(1) == 0
    setting.close()


@in_a_process
def test_while_the_faster_tier_is_sick_the_slower_one_takes_the_files(tmp_path, monkeypatch):
    setting = Setting(tmp_path, contents_of(3), None, None)

    def fail(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    for method in ("look", "claim", "places"):
        monkeypatch.setattr(setting.stores[0], method, fail)
    assert setting.outcomes(*setting.paths) == [COPIED] * 3
    monkeypatch.undo()
    assert {setting.tier_of(path) for path in setting.paths} == {1}
    (text,) = setting.said
    assert str(setting.directories[0]) in text
    setting.close()


@in_a_process
def test_a_slower_tier_that_is_sick_hides_no_faster_one_that_is_full(tmp_path, monkeypatch):
    setting = Setting(tmp_path, contents_of(2), 1, None)

    def fail(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(setting.stores[1], "places", fail)
    assert setting.outcomes(setting.paths[0]) == [COPIED]
    assert setting.outcomes(setting.paths[1]) == [REFUSED]
    setting.close()


@in_a_process
def test_what_is_staged_in_another_tier_between_look_and_claim_is_not_read_again(
    tmp_path, monkeypatch
):
    contents = contents_of(3)
    first = Setting(tmp_path, contents, 1, None)
    second = Setting(tmp_path, contents, 1, None, run=2)
    claim = second.stores[0].claim

    def claim_late(*args):
        first.stage(*first.paths)
        return claim(*args)

    monkeypatch.setattr(second.stores[0], "claim", claim_late)
    assert second.outcomes(*second.paths) == [FOUND] * 3
    assert sorted(second.tier_of(path) for path in second.paths) == [0, 1, 1]
    assert second.origin.n_opened.total() == 0
    assert staged.being_copied(second.directories[0]) == set()
    for setting in (first, second):
        setting.close()


@in_a_process
def test_what_could_not_be_dropped_before_it_is_claimed_is_not_taken_for_new(tmp_path, monkeypatch):
    contents = contents_of(2)
    first = Setting(tmp_path, contents, 1, None)
    assert first.outcomes(*first.paths) == [COPIED] * 2
    first.close()
    later = Setting(tmp_path, contents, 1, None, run=2)
    in_slower = [path for path in later.paths if later.tier_of(path) == 1]
    for path in in_slower:
        later.origin.mtimes_ns[path] = OLD_NS + 1
    monkeypatch.setattr(later.stores[1], "drop", lambda _extents: None)
    outcomes = later.stage(*in_slower)
    assert [answer.outcome for answer in outcomes.values()] != [FOUND]
    assert later.origin.n_opened.total() == 1
    later.close()


@in_a_process
def test_of_a_changed_file_no_copy_is_used_that_a_kill_amid_a_move_has_left_in_another_tier(
    tmp_path, monkeypatch
):
    contents = contents_of(2)
    first = Setting(tmp_path, contents, None, None)
    assert first.outcomes(*first.paths) == [COPIED] * 2
    monkeypatch.setattr(first.stores[0], "evict", lambda _keys, **_options: {})
    first.stager.evict(first.keys(first.paths), 0, None)
    assert [len(store.look(first.wanted(first.paths))) for store in first.stores] == [2, 2]
    first.close()
    later = Setting(tmp_path, dict.fromkeys(contents, b"new"), None, None, run=2)
    later.origin.mtimes_ns = dict.fromkeys(contents, OLD_NS + 1)
    assert later.outcomes(*later.paths) == [COPIED] * 2
    assert later.n_blocks(1) == 0
    later.close()


@pytest.mark.parametrize("tier", [0, 1])
@in_a_process
def test_what_another_process_has_rise_is_waited_for_and_found_where_it_is_then(
    tmp_path, monkeypatch, tier
):
    contents = contents_of(3)
    other = Setting(tmp_path, contents, None, None)
    staged_one_by_one(other, *other.paths)
    assert evict(other, 0, *other.paths) == [1] * 3
    files = other.wanted(other.paths)
    other.stores[0].claim(files)
    setting = Setting(tmp_path, contents, None, None, run=2)
    being_copied = setting.stores[0].being_copied

    def look(keys):
        copied = being_copied(keys)
        other.stores[0].publish([], [file.key for file in files])
        if tier == 0:
            assert other.outcomes(*other.paths) == [FOUND] * 3
        return copied

    monkeypatch.setattr(setting.stores[0], "being_copied", look)
    assert setting.outcomes(*setting.paths) == [FOUND] * 3
    assert [setting.tier_of(path) for path in setting.paths] == [tier] * 3
    assert setting.origin.n_opened.total() == 0
    assert staged.being_copied(setting.directories[0]) == set()
    for each in (other, setting):
        each.close()


@pytest.mark.parametrize("size_blocks", [1, 300])
@in_a_process
def test_a_file_that_moves_does_not_count_as_compared_with_its_source_by_then(
    tmp_path, size_blocks
):
    contents = contents_of(2, 4096 * size_blocks)
    setting = Setting(tmp_path, contents, 2 * size_blocks, 2 * size_blocks)
    setting.stage(*contents)

    def times(tier):
        return setting.stores[tier]._access.rows("SELECT at > 1000 FROM staged")

    assert times(0) == [(1,), (1,)]
    assert evict(setting, 0, *contents) == [1, 1]
    assert (times(0), times(1)) == ([], [(0,), (0,)])
    setting.stage(*contents)
    assert (times(0), times(1)) == ([(0,), (0,)], [])
    setting.close()
