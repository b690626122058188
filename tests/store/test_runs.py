"""Runs that share a staging directory: what they want, how they end, and what no run uses."""

from __future__ import annotations

import time

import pytest

from overlapiter.store import neighbours
from overlapiter.store import store as store_module
from tests.store.actors import apart, in_a_process
from tests.store.stores import SOURCE, made_store, n_right, segment_paths, stage


def runs(store):
    statement = "SELECT id, ended IS NOT NULL, ending FROM run ORDER BY id"
    return store._access.read(lambda cursor: cursor.execute(statement).fetchall())


@in_a_process
def test_what_one_run_wants_others_see_and_it_does_not(directory):
    one, other = made_store(directory, 1), made_store(directory, 2)
    one.total_bytes()
    other.neighbours.want([1, 2, 3])
    assert one.neighbours.wanted_by_others([2, 3, 4]) == {2, 3}
    assert other.neighbours.wanted_by_others([2, 3, 4]) == set()
    other.close()
    one.close()


@in_a_process
def test_a_run_that_is_alone_notes_nothing_until_another_one_is_seen(directory, monkeypatch):
    one = made_store(directory, 1)
    one.neighbours.want([1])
    other = made_store(directory, 2)
    other.total_bytes()
    one.neighbours.want([2])
    assert other.neighbours.wanted_by_others([1, 2]) == set()
    monkeypatch.setattr(neighbours, "_LOOK_AFTER_SECONDS", 0)
    one.neighbours.want([3])
    assert other.neighbours.wanted_by_others([1, 2, 3]) == {3}
    other.close()
    one.close()


@in_a_process
def test_what_a_run_wants_it_wants_for_some_seconds(directory, monkeypatch):
    one, other = made_store(directory, 1), made_store(directory, 2)
    one.total_bytes()
    other.neighbours.want([1])
    later_ns = time.monotonic_ns() + 11 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert one.neighbours.wanted_by_others([1]) == set()
    for _ in range(64):
        other.neighbours.want([2])
    statement = "SELECT key FROM wanted"
    assert one._access.read(lambda cursor: cursor.execute(statement).fetchall()) == [(2,)]
    other.close()
    one.close()


@in_a_process
def test_what_short_runs_have_wanted_does_not_pile_up(directory, monkeypatch):
    one = made_store(directory, 1)
    one.total_bytes()
    for run in range(2, 6):
        other = made_store(directory, run)
        other.neighbours.want([run])
        other.close()
        later_ns = time.monotonic_ns() + 11 * 10**9
        monkeypatch.setattr(time, "monotonic_ns", lambda ns=later_ns: ns)
    statement = "SELECT key FROM wanted"
    assert one._access.read(lambda cursor: cursor.execute(statement).fetchall()) == [(5,)]
    one.close()


def leave_files(directory, files):
    """Have a run stage files, and end."""
    store = made_store(directory, 1)
    stage(store, files, files.paths)
    store.record_end("closed", {})
    store.close()


@in_a_process
def test_files_of_a_source_that_no_run_uses_are_strays(directory, files):
    one = made_store(directory, 1)
    stage(one, files, files.paths)
    other = made_store(directory, 2, source="/lustre/others")
    assert not other.neighbours.strays(are_young_spared=False, limit=100)
    one.record_end("closed", {"files": 40})
    one.close()
    assert len(other.neighbours.strays(are_young_spared=False, limit=100)) == 40
    assert len(other.neighbours.strays(are_young_spared=False, limit=7)) == 7
    assert not other.neighbours.strays(are_young_spared=True, limit=100)
    assert len(other.evict(other.neighbours.strays(are_young_spared=False, limit=100))) == 40
    assert not other.neighbours.strays(are_young_spared=False, limit=100)
    other.close()


@in_a_process
def test_what_was_staged_before_the_clock_was_set_back_is_a_stray(directory, files, monkeypatch):
    now_seconds = time.time()
    monkeypatch.setattr(time, "time", lambda: now_seconds + 10**8)
    store = made_store(directory, 1)
    stage(store, files, files.paths)
    store.neighbours.tell_uses([])
    store.record_end("closed", {})
    store.close()
    monkeypatch.setattr(time, "time", lambda: now_seconds)
    other = made_store(directory, 2, "/lustre/other")
    for are_young_spared in (False, True):
        found = other.neighbours.strays(are_young_spared=are_young_spared, limit=100)
        assert len(found) == len(files.paths)
    other.close()


@in_a_process
def test_a_search_for_strays_goes_on_where_the_last_one_has_ended(directory, files):
    leave_files(directory, files)
    other = made_store(directory, 2, source="/lustre/others")
    parts = [other.neighbours.strays(are_young_spared=False, limit=15) for _ in range(4)]
    assert [len(part) for part in parts] == [15, 15, 10, 15]
    assert len(set().union(*parts[:3])) == 40
    assert parts[3] == parts[0]
    other.close()


@in_a_process
def test_strays_come_root_by_root_so_that_their_segments_become_empty(directory, files):
    roots, contents = [], files.contents
    for run, root in enumerate(("/lustre/c", "/lustre/a", "/lustre/b"), 1):
        store = made_store(directory, run, root)
        files.contents = {path.replace(SOURCE, root): data for path, data in contents.items()}
        extents = stage(store, files, [*files.contents])
        roots.append({extent.key for extent in extents.values()})
        store.record_end("closed", {})
        store.close()
    other = made_store(directory, 4, "/lustre/others")
    gone = []
    while keys := other.neighbours.strays(are_young_spared=False, limit=15):
        other.evict(keys)
        gone += keys
        n_left = sum(not own.issubset(gone) for own in roots)
        assert len(segment_paths(directory)) == n_left + 1  # and its own
    n_files = len(files.paths)
    assert [{*gone[at : at + n_files]} for at in range(0, 3 * n_files, n_files)] == roots
    other.close()


@in_a_process
def test_a_source_of_which_nothing_is_staged_any_more_costs_no_further_search(
    directory, monkeypatch
):
    one, other = made_store(directory, 1), made_store(directory, 2, source="/lustre/others")
    one.total_bytes()
    looks, rows = [], other._access.rows

    def look(statement, *values):
        looks.append("FROM staged" in statement)
        return rows(statement, *values)

    def n_looks():
        looks.clear()
        assert not other.neighbours.strays(are_young_spared=False, limit=100)
        return sum(looks)

    monkeypatch.setattr(other._access, "rows", look)
    one.record_end("closed", {})
    assert [n_looks() for _ in range(3)] == [1, 1, 1]  # its threads may stage something still
    one.close()
    assert [n_looks() for _ in range(3)] == [1, 0, 0]
    assert rows("SELECT root FROM source") == [(b"/lustre/others",)]
    other.close()


@pytest.mark.parametrize(
    ("ending", "then"), [("closed", (1, 1, "closed")), ("failed", (1, 0, None))]
)
@in_a_process
def test_a_run_that_was_closed_stays_so_whatever_its_threads_still_do_and_others_may_come_back(
    directory, ending, then
):
    store = made_store(directory, 1)
    store.record_end(ending, {"files": 3})
    assert runs(store) == [(1, 1, ending)]
    store.close()
    assert runs(store) == [then]  # to look opens it anew
    store.close()


def test_a_run_whose_processes_were_all_killed_has_ended(directory, files, act):
    def prefetcher(run):
        store = made_store(directory, run)
        stage(store, files, files.paths[:3])
        yield

    def other():
        store = made_store(directory, 9)
        store.total_bytes()
        yield runs(store)
        store.take_over()
        yield runs(store)
        store.close()
        yield

    one, two, third = (
        act(lambda: prefetcher(1)),
        act(lambda: prefetcher(1)),
        act(lambda: prefetcher(2)),
    )
    for actor in (one, two, third):
        actor.step()
    one.kill()
    third.kill()
    look = act(other)
    assert look.step() == [(1, 0, None), (2, 0, None), (9, 0, None)]
    assert look.step() == [(1, 0, None), (2, 1, "killed"), (9, 0, None)]
    look.step()
    two.kill()
    apart(lambda: made_store(directory, 9).sweep())
    look = act(other)
    assert look.step()[:2] == [(1, 1, "killed"), (2, 1, "killed")]


def test_a_run_that_was_killed_between_two_processes_has_ended_once_it_is_swept(directory, act):
    def prefetcher():
        store = made_store(directory, 1)
        store.total_bytes()
        store.close()
        yield

    act(prefetcher).step()

    def sweeper():
        store = made_store(directory, 2)
        store.sweep()
        return runs(store)

    assert apart(sweeper) == [(1, 1, "killed"), (2, 0, None)]


@in_a_process
def test_of_many_runs_the_last_ones_are_remembered(directory, monkeypatch):
    monkeypatch.setattr(store_module, "_MOST_RUNS", 5)
    for number in range(1, 12):
        store = made_store(directory, number)
        store.record_end("closed", {})
        store.close()
    store = made_store(directory, 99)
    assert [number for number, *_ in runs(store)] == [7, 8, 9, 10, 11, 99]
    store.close()


@pytest.mark.parametrize("facts", [{"tiers": [1, {"a": object}]}, {}])
def test_facts_of_any_kind_can_be_noted(directory, files, facts):
    def stage_all():
        store = made_store(directory, 1)
        store._run = store._run._replace(facts=facts)
        stage(store, files, files.paths)
        assert n_right(store, files) == len(files.paths)
        store.close()

    apart(stage_all)


DAY_SECONDS = 24 * 3600


def aged_store(directory, files, run):
    """Return the store of a run that began days ago, and has staged files then."""
    store = made_store(directory, run)
    stage(store, files, files.paths)
    for change in ("run SET started=started", "staged SET used=used"):
        statement = f"UPDATE {change}-{3 * DAY_SECONDS}"
        store._access.write(lambda cursor, statement=statement: cursor.execute(statement))
    return store


def n_strays(store, *, are_young_spared=True):
    return len(store.neighbours.strays(are_young_spared=are_young_spared, limit=100))


@in_a_process
def test_what_the_runs_of_a_root_do_not_use_are_strays_once_all_have_told(directory, files):
    aged_store(directory, files, 1).close()
    one, other = made_store(directory, 2), made_store(directory, 3)
    one.sweep()
    statement = f"UPDATE run SET ended=ended-{2 * DAY_SECONDS} WHERE id=1"
    one._access.write(lambda cursor: cursor.execute(statement))
    other.sweep()
    one.neighbours.tell_uses([one.key_of(path) for path in files.paths[:15]])
    assert n_strays(one) == 0
    other.neighbours.tell_uses([one.key_of(path) for path in files.paths[:20]])
    assert n_strays(one) == n_strays(other) == len(files.paths) - 20
    assert n_strays(one, are_young_spared=False) == 0
    other.close()
    one.close()


@in_a_process
def test_a_run_that_needs_the_room_spares_what_living_runs_use_and_nothing_else(directory, files):
    leave_files(directory, files)
    time.sleep(1)
    one, other = made_store(directory, 2), made_store(directory, 3)
    keys = [one.key_of(path) for path in files.paths]
    other.total_bytes()
    one.neighbours.tell_uses(keys[:15], needs_room=True)
    assert n_strays(one) == 0
    other.neighbours.tell_uses(keys[10:20])
    assert n_strays(one) == n_strays(other) == len(files.paths) - 20
    one.close()
    other.close()


@in_a_process
def test_what_a_long_run_has_used_stays_for_a_day_after_its_end(directory, files):
    one, other = aged_store(directory, files, 1), made_store(directory, 2)
    one.record_end("closed", {})
    other.neighbours.tell_uses([])
    assert n_strays(other) == 0
    earlier = f"UPDATE run SET ended=ended-{2 * DAY_SECONDS} WHERE id=1"
    one._access.write(lambda cursor: cursor.execute(earlier))
    assert n_strays(other) == len(files.paths)
    other.close()
    one.close()


@in_a_process
def test_of_a_root_with_runs_what_none_uses_is_looked_for_until_there_is_no_more(
    directory, files, monkeypatch
):
    one, other = aged_store(directory, files, 1), made_store(directory, 2)
    for store in (one, other):
        store.neighbours.tell_uses([])
    looks, rows = [], other._access.rows

    def look(statement, *values):
        looks.append("FROM staged" in statement)
        return rows(statement, *values)

    def n_looks():
        looks.clear()
        assert n_strays(other) == 0
        return sum(looks)

    monkeypatch.setattr(other._access, "rows", look)
    assert [n_looks() for _ in range(3)] == [1, 0, 0]
    one._access.write(lambda cursor: cursor.execute("UPDATE staged SET used=0 WHERE rowid % 2"))
    late = f"UPDATE run SET started=started-{DAY_SECONDS}"
    one._access.write(lambda cursor: cursor.execute(late))
    n_found = len(other.neighbours.strays(are_young_spared=True, limit=3))
    beginner = made_store(directory, 3)
    beginner.total_bytes()
    assert n_strays(other) == 0
    beginner.neighbours.tell_uses([])
    while keys := other.neighbours.strays(are_young_spared=True, limit=3):
        other.evict(keys)
        n_found += len(keys)
    assert 3 < n_found <= len(files.paths)
    assert [n_looks() for _ in range(2)] == [0, 0]
    for store in (beginner, other, one):
        store.close()
