"""The stager: a file crosses the slow store once, and is staged as it is there, or not at all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import os
import resource
import signal
import threading
import time

import pytest

from overlapiter.store import boot, copier, tiers
from overlapiter.store.extents import SMALL_BYTES, ExtentReader
from overlapiter.store.generation import discard, generation_of
from overlapiter.store.index import IndexBusyError
from overlapiter.store.outcome import Outcome
from tests.store.actors import apart, in_a_process
from tests.store.stagers import Setting, contents_of
from tests.store.stores import BLOCK_BYTES, SOURCE
from tests.support import staged

COPIED, FOUND = Outcome.COPIED, Outcome.FOUND
SOURCE_FAILED, REFUSED, FAILED, BUSY = (
    Outcome.SOURCE_FAILED,
    Outcome.REFUSED,
    Outcome.FAILED,
    Outcome.BUSY,
)

# --- copies ---------------------------------------------------------------------------------------


@in_a_process
def test_a_file_is_copied_once_and_found_by_this_run_and_by_later_ones(tmp_path):
    contents = contents_of(5)
    first = Setting(tmp_path, contents)
    assert first.outcomes(*first.paths) == [COPIED] * 5
    assert first.outcomes(*first.paths) == [FOUND] * 5
    first.close()
    later = Setting(tmp_path, contents, run=2)
    assert later.outcomes(*later.paths) == [FOUND] * 5
    assert first.origin.n_opened.total() == 5
    assert later.origin.n_opened.total() == 0
    assert first.said == later.said == []


@pytest.mark.parametrize(
    "size_bytes", [1, 4095, 4096, 4097, 300_000, SMALL_BYTES, SMALL_BYTES + 1, 5 << 20]
)
@in_a_process
def test_files_of_any_size_are_copied_in_whole_blocks(tmp_path, size_bytes):
    setting = Setting(tmp_path, contents_of(2, size_bytes))
    assert setting.outcomes(*setting.paths) == [COPIED] * 2
    whole = size_bytes > SMALL_BYTES
    assert all(setting.extent(path).is_whole == whole for path in setting.paths)
    assert setting.n_blocks() == 2 * -(-size_bytes // BLOCK_BYTES)
    staged.assert_accounted(setting.directories[0])
    setting.close()


@in_a_process
def test_a_source_that_gives_less_than_it_was_asked_for_is_copied_whole(tmp_path, monkeypatch):
    setting = Setting(tmp_path, contents_of(1, 10_000))
    real = setting.origin.open

    class Slow:
        def __init__(self, file):
            self.stat, self._file = file.stat, file

        def read(self, size_bytes):
            return self._file.read(min(size_bytes, 77))

    class Opened:
        def __init__(self, path):
            self._opened = real(path)

        def __enter__(self):
            return Slow(self._opened.__enter__())

        def __exit__(self, *exception):
            return self._opened.__exit__(*exception)

    monkeypatch.setattr(setting.origin, "open", Opened)
    assert setting.outcomes(*setting.paths) == [COPIED]
    setting.close()


@in_a_process
def test_a_disk_that_writes_slowly_does_not_make_the_source_slow(tmp_path, monkeypatch):
    setting = Setting(tmp_path, contents_of(1, 300_000))
    real = copier.write

    def write_slowly(*arguments):
        time.sleep(0.5)
        real(*arguments)

    monkeypatch.setattr(copier, "write", write_slowly)
    (answer,) = setting.stage(*setting.paths).values()
    assert 0 < answer.read_ns < 0.5e9
    setting.close()


@in_a_process
def test_threads_that_want_the_same_files_read_each_once(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        setting = Setting(tmp_path, contents_of(24), submit=pool.submit)
        setting.origin.before_read = lambda _path: time.sleep(0.001)
        parts = [setting.paths[start : start + 8] for start in (0, 8, 16, 4, 12, 0)]
        with concurrent.futures.ThreadPoolExecutor(6) as askers:
            found = list(askers.map(lambda part: setting.outcomes(*part), parts))
        assert sum(part.count(COPIED) for part in found) == 24
        assert sum(part.count(FOUND) for part in found) == 24
    assert setting.origin.n_opened == dict.fromkeys(setting.paths, 1)
    setting.close()


# --- the source -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["newer", "older", "longer"])
@in_a_process
def test_a_source_that_changed_between_runs_replaces_the_copy(tmp_path, change):
    contents = contents_of(3)
    first = Setting(tmp_path, contents)
    first.stage(*contents)
    first.close()
    later = Setting(tmp_path, contents, run=2)
    path = later.paths[1]
    contents[path] = bytes(len(contents[path]) + (change == "longer"))
    step_ns = {"newer": 10**9, "older": -(10**9), "longer": 0}[change]
    later.origin.mtimes_ns[path] = 10**18 + step_ns
    assert later.outcomes(*later.paths) == [FOUND, COPIED, FOUND]
    assert later.n_blocks() == 3 + (change == "longer")
    later.close()


@in_a_process
def test_what_cannot_be_read_is_left_to_the_file_reader_and_claimed_no_longer(tmp_path):
    contents = contents_of(2)
    setting = Setting(tmp_path, contents)
    good, empty = setting.paths
    contents[empty] = b""
    missing, odd = f"{SOURCE}/missing", f"{SOURCE}/null\0"
    for _ in range(2):
        outcomes = setting.outcomes(good, missing, empty, odd)
        assert outcomes[1:] == [SOURCE_FAILED] * 3
    assert staged.being_copied(setting.directories[0]) == set()
    contents[missing] = b"there"
    assert setting.outcomes(missing) == [COPIED]
    assert setting.said == []
    setting.close()


@pytest.mark.parametrize("size_bytes", [BLOCK_BYTES, 2 << 20])
@pytest.mark.parametrize("deed", ["touched", "cut", "unreadable"])
@in_a_process
def test_a_file_that_changes_while_it_is_copied_is_not_kept(tmp_path, deed, size_bytes):
    contents = contents_of(1, size_bytes)
    setting = Setting(tmp_path, contents)
    (path,) = setting.paths
    whole = contents[path]

    def change(_path):
        if deed == "touched":
            setting.origin.mtimes_ns[path] = 1
        elif deed == "unreadable":
            raise OSError(errno.EIO, "Input/output error")
        else:
            contents[path] = whole[: size_bytes // 2]

    setting.origin.before_read = change
    assert setting.outcomes(path) == [SOURCE_FAILED]
    assert setting.n_blocks() == 0
    setting.origin.before_read = lambda _path: None
    contents[path] = whole
    assert setting.outcomes(path) == [COPIED]
    setting.close()


@pytest.mark.parametrize("size_bytes", [BLOCK_BYTES, 2 << 20])
@in_a_process
def test_what_was_read_whole_is_kept_though_the_source_cannot_be_closed(tmp_path, size_bytes):
    setting = Setting(tmp_path, contents_of(1, size_bytes))
    real = setting.origin.open

    @contextlib.contextmanager
    def opened(path):
        with real(path) as file:
            yield file
        raise OSError(errno.EIO, "Input/output error")

    setting.origin.open = opened
    assert setting.outcomes(*setting.paths) == [COPIED]
    staged.assert_accounted(setting.directories[0])
    setting.close()


@in_a_process
def test_a_source_that_may_still_be_written_is_compared_again(tmp_path):
    contents = contents_of(1)
    setting = Setting(tmp_path, contents)
    (path,) = setting.paths
    setting.origin.mtimes_ns[path] = time.time_ns()
    for number in range(3):
        answer = setting.stage(path)[path]
        assert not answer.is_settled
        assert setting.origin.n_stats[path] == number
    contents[path] = bytes(BLOCK_BYTES)
    setting.origin.mtimes_ns[path] = 10**18
    assert setting.outcomes(path) == [COPIED]
    assert setting.stage(path)[path].is_settled
    setting.close()


# --- comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("validate", "n_looks"), [("mtime", 1), ("checksum", 1), ("never", 0)])
@in_a_process
def test_a_copy_of_an_earlier_run_is_compared_once(tmp_path, validate, n_looks):
    contents = contents_of(3)
    Setting(tmp_path, contents).stage(*contents)
    later = Setting(tmp_path, contents, run=2, validate=validate)
    for _ in range(3):
        assert later.outcomes(*later.paths) == [FOUND] * 3
    assert later.origin.n_stats.total() == 3 * n_looks
    later.close()


@in_a_process
def test_a_copy_that_another_prefetcher_of_this_run_has_compared_is_trusted(tmp_path):
    contents = contents_of(3)
    first = Setting(tmp_path, contents)
    trusted = {path: answer.extent for path, answer in first.stage(*contents).items()}
    other = Setting(tmp_path, contents)
    assert other.outcomes(*other.paths, trusted=trusted) == [FOUND] * 3
    assert other.origin.n_stats.total() == 0
    wrong = {path: extent._replace(start=0, checksum=1) for path, extent in trusted.items()}
    other = Setting(tmp_path, contents)
    assert other.outcomes(*other.paths, trusted=wrong) == [FOUND] * 3
    assert other.origin.n_stats.total() == 3


@pytest.mark.parametrize("size_bytes", [BLOCK_BYTES, 2 << 20])
@pytest.mark.parametrize(
    ("validate", "finds"), [("mtime", False), ("checksum", True), ("never", False)]
)
@in_a_process
def test_a_checksum_finds_what_a_disk_did_to_a_copy(tmp_path, validate, finds, size_bytes):
    contents = contents_of(3, size_bytes)
    first = Setting(tmp_path, contents)
    first.stage(*contents)
    staged.flip(first.directories[0], first.extent(first.paths[1]))
    first.close()
    later = Setting(tmp_path, contents, run=2, validate=validate)
    answers = later.stage(*later.paths)
    outcomes = [answer.outcome for answer in answers.values()]
    assert outcomes == [FOUND, COPIED if finds else FOUND, FOUND]
    if finds:
        assert later.outcomes(*later.paths) == [FOUND] * 3
    later.close()


@pytest.mark.parametrize("size_bytes", [BLOCK_BYTES, 2 << 20])
@pytest.mark.parametrize("deed", staged.DAMAGE)
@in_a_process
def test_a_copy_that_a_reader_suspects_is_looked_at_and_replaced_if_it_is_damaged(
    tmp_path, deed, size_bytes
):
    setting = Setting(tmp_path, contents_of(2, size_bytes))
    setting.stage(*setting.paths)
    assert setting.outcomes(*setting.paths, suspects=setting.paths) == [FOUND] * 2
    for path in setting.paths:
        staged.DAMAGE[deed](setting.directories[0], setting.extent(path))
    assert setting.outcomes(*setting.paths, suspects=setting.paths) == [COPIED] * 2
    assert setting.said == []
    setting.close()


def test_after_another_boot_a_copy_is_read_before_it_is_used(tmp_path, monkeypatch):
    contents = contents_of(3)

    def last_boot():
        setting = Setting(tmp_path, contents)
        setting.stage(*contents)
        staged.zero(setting.directories[0], setting.extent(setting.paths[1]))
        setting.close()

    def this_boot():
        monkeypatch.setattr(boot, "BOOT_ID_PATH", str(tmp_path / "boot_id"))
        setting = Setting(tmp_path, contents, run=2, validate="never")
        note, noted = setting.stores[0].note_verified, []
        monkeypatch.setattr(
            setting.stores[0], "note_verified", lambda keys: note(keys) or noted.append(len(keys))
        )
        assert setting.outcomes(*setting.paths) == [FOUND, COPIED, FOUND]
        assert noted == [2]  # together
        monkeypatch.setattr(ExtentReader, "is_right", pytest.fail)
        assert setting.outcomes(*setting.paths) == [FOUND] * 3
        setting.close()

    (tmp_path / "boot_id").write_text("another\n")
    apart(last_boot)
    apart(this_boot)


@in_a_process
def test_where_the_boot_id_is_hidden_the_time_of_the_boot_stands_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(boot, "BOOT_ID_PATH", str(tmp_path / "boot_id"))
    monkeypatch.setattr(boot, "STAT_PATH", str(tmp_path / "stat"))
    setting = Setting(tmp_path, contents_of(2))
    assert setting.outcomes(setting.paths[0]) == [FAILED]
    (text,) = setting.said
    assert f"neither {tmp_path}/boot_id nor {tmp_path}/stat tells which boot" in text
    assert "have /proc mounted" in text
    for seconds, n_verified in ((1_700_000_000, 0), (1_700_000_000, 2), (1_700_009_999, 0)):
        (tmp_path / "stat").write_text(f"cpu 1 2\nbtime {seconds}\nprocesses 3\n")
        later = Setting(tmp_path, contents_of(2))
        found = later.stores[0].look(later.wanted(later.paths))
        assert [each.is_verified for each in found.values()].count(True) == n_verified
        later.stage(*later.paths)
        later.close()
    setting.close()


# --- room -----------------------------------------------------------------------------------------


@in_a_process
def test_without_room_files_are_refused_until_room_is_made(tmp_path):
    setting = Setting(tmp_path, contents_of(5), 3)
    for path in setting.paths[:3]:
        assert setting.outcomes(path) == [COPIED]
    assert setting.outcomes(setting.paths[3]) == [REFUSED]
    asked = []

    def make_room(tier, size_bytes):
        asked.append((tier, size_bytes))
        if len(asked) > 2:
            return False
        setting.stores[tier].evict([setting.extent(setting.paths[len(asked)]).key])
        return True

    assert setting.outcomes(*setting.paths[3:], make_room=make_room) == [COPIED] * 2
    assert asked == [(0, 2 * BLOCK_BYTES), (0, BLOCK_BYTES)]
    assert setting.outcomes(setting.paths[1], make_room=make_room) == [REFUSED]
    assert setting.n_blocks() == 3
    assert setting.said == []
    setting.close()


@in_a_process
def test_an_outdated_copy_makes_room_for_its_successor(tmp_path):
    contents = contents_of(3)
    Setting(tmp_path, contents, 3).stage(*contents)
    later = Setting(tmp_path, contents, 3, run=2)
    later.origin.mtimes_ns = dict.fromkeys(contents, 1)
    assert later.outcomes(*later.paths) == [COPIED] * 3
    later.close()


@in_a_process
def test_a_file_larger_than_all_the_room_evicts_one_file_at_most_and_is_told_of_once(tmp_path):
    contents = contents_of(3)
    setting = Setting(tmp_path, contents, 3)
    setting.stage(*setting.paths)
    large = f"{SOURCE}/large", f"{SOURCE}/huge"
    contents.update({large[0]: bytes(4 * BLOCK_BYTES), large[1]: bytes(2 << 20)})
    store, evicted = setting.stores[0], []

    def make_room(_tier: int, _size_bytes: int) -> bool:
        """Make room for a file of ordinary size: how large this one is, is not known yet."""
        evicted.append(setting.paths[len(evicted)])
        return bool(store.evict([store.key_of(evicted[-1])]))

    outcomes = setting.outcomes(*large, make_room=make_room)
    assert outcomes == [Outcome.TOO_LARGE] * 2
    (text,) = setting.said
    assert "larger than all the room" in text
    assert len(evicted) <= 2
    left = [path for path in setting.paths if path not in evicted]
    assert setting.outcomes(*left) == [FOUND] * len(left)
    setting.close()


# --- a disk that fails ----------------------------------------------------------------------------


@dataclasses.dataclass
class Clock:
    """In the place of the module ``time``, as far as pauses go."""

    now_seconds: float = 1000.0

    def __getattr__(self, name):
        return getattr(time, name)

    def monotonic(self):
        return self.now_seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (copier, tiers):
        monkeypatch.setattr(module, "time", clock)
    return clock


def failing(setting, method, error):
    """Have a method of the first store raise an error as long as it is in the list returned."""
    real, errors, calls = getattr(setting.stores[0], method), [error], []

    def maybe(*arguments, **options):
        calls.append(arguments)
        if errors:
            raise errors[0]
        return real(*arguments, **options)

    setattr(setting.stores[0], method, maybe)
    return errors, calls


@in_a_process
def test_a_sick_disk_is_left_alone_and_tried_again_after_a_pause(tmp_path, clock):
    setting = Setting(tmp_path, contents_of(40))
    errors, calls = failing(setting, "claim", OSError(errno.EIO, "Input/output error", "/x"))
    for path in setting.paths[:10]:
        assert setting.outcomes(path) == [FAILED]
    assert len(calls) == 1
    clock.now_seconds += 0.25
    setting.stage(setting.paths[10])
    setting.stage(setting.paths[11])
    assert len(calls) == 2
    errors.clear()
    clock.now_seconds += 0.5
    assert setting.outcomes(*setting.paths) == [COPIED] * 40
    (text,) = setting.said
    assert "Input/output error" in text
    assert str(setting.directories[0]) in text
    assert "/x" not in text
    setting.close()


@pytest.mark.parametrize(
    ("number", "outcome", "words"),
    [
        (errno.EROFS, FAILED, "see whether that disk is broken"),
        (errno.EMFILE, FAILED, "ulimit -n"),
        (errno.EFBIG, FAILED, "ulimit -f"),
        (errno.ENOSPC, REFUSED, ""),
        (errno.EDQUOT, REFUSED, ""),
    ],
)
@pytest.mark.parametrize("method", ["claim", "places", "publish"])
@in_a_process
def test_what_is_said_of_a_disk_says_what_to_do(tmp_path, method, number, outcome, words):
    setting = Setting(tmp_path, contents_of(2))
    failing(setting, method, OSError(number, os.strerror(number)))
    answers = setting.stage(*setting.paths)
    assert {answer.outcome for answer in answers.values()} == {outcome}
    assert {answer.extent for answer in answers.values()} == {None}
    assert [words in text for text in setting.said] == [True] * bool(words)


@pytest.mark.parametrize("size_bytes", [BLOCK_BYTES, 5 << 20])
@in_a_process
def test_a_source_file_that_finds_no_descriptor_is_staged_later(tmp_path, clock, size_bytes):
    setting = Setting(tmp_path, contents_of(3, size_bytes))
    real = setting.origin.open

    @contextlib.contextmanager
    def opened(path):
        with open(os.devnull, "rb"), real(path) as file:  # takes a descriptor
            yield file

    setting.origin.open = opened
    setting.stage(setting.paths[0])
    fds = []
    with contextlib.suppress(OSError):
        while True:
            fds.append(os.open(os.devnull, os.O_RDONLY))
    assert setting.outcomes(*setting.paths[1:]) == [FAILED] * 2
    for fd in fds:
        os.close(fd)
    clock.now_seconds += 5
    assert setting.outcomes(*setting.paths[1:]) == [COPIED] * 2
    (text,) = setting.said
    assert "ulimit -n" in text
    setting.close()


@in_a_process
def test_an_index_that_is_locked_for_too_long_is_no_reason_to_leave_the_disk_alone(tmp_path):
    setting = Setting(tmp_path, contents_of(2))
    errors, _ = failing(setting, "claim", IndexBusyError())
    assert setting.outcomes(setting.paths[0]) == [BUSY]
    errors.clear()
    assert setting.outcomes(*setting.paths) == [COPIED] * 2
    (text,) = setting.said
    assert "a job here was stopped" in text
    setting.close()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), IndexBusyError()])
@in_a_process
def test_what_could_not_be_looked_up_is_not_taken_for_compared_when_it_is_claimed(
    tmp_path, clock, error
):
    contents = contents_of(2)
    first = Setting(tmp_path, contents)
    first.stage(*contents)
    first.close()
    setting = Setting(tmp_path, contents, run=2)
    path = setting.paths[0]
    contents[path] = bytes(len(contents[path]))
    setting.origin.mtimes_ns[path] = 10**18 + 1
    errors, _ = failing(setting, "look", error)
    assert [answer.extent for answer in setting.stage(*setting.paths).values()] == [None] * 2
    errors.clear()
    clock.now_seconds += 1
    assert setting.outcomes(*setting.paths) == [COPIED, FOUND]
    setting.close()


# --- what holds a part up -------------------------------------------------------------------------


@in_a_process
def test_what_is_copied_of_a_part_that_one_file_holds_up_is_published_by_the_second_flush(
    tmp_path,
):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        setting = Setting(tmp_path, contents_of(8), submit=pool.submit)
        slow, gate = setting.paths[3], threading.Event()
        setting.origin.before_read = lambda path: path != slow or gate.wait(60)
        partly, answers = {}, {}
        wanted = setting.wanted(setting.paths)
        pool.submit(setting.stager.stage, wanted, answers.update, partly=partly.update)
        only = {setting.stores[0].key_of(slow): None}
        while setting.origin.n_opened.total() < 8 or setting.stager._slow_store._asked != only:
            time.sleep(0.001)
        assert [setting.stager.oldest_read()] == [*only]
        assert not any(setting.tier_of(path) == 0 for path in setting.paths)
        while len(partly) < 7:
            setting.stager.flush()
        assert not answers
        assert [setting.tier_of(path) for path in setting.paths] == [0] * 3 + [None] + [0] * 4
        gate.set()
    assert [answer.outcome for answer in answers.values()] == [COPIED] * 8
    assert [setting.tier_of(path) for path in setting.paths] == [0] * 8
    setting.stager.flush()
    assert setting.origin.n_opened == dict.fromkeys(setting.paths, 1)
    setting.close()


@in_a_process
def test_a_part_that_is_looked_at_while_it_claims_is_not_done_before(tmp_path, monkeypatch):
    contents = contents_of(6)
    first = Setting(tmp_path, contents)
    first.stage(*first.paths[:3])
    first.close()
    setting = Setting(tmp_path, contents, run=2)
    done, claim, stat = [], setting.stores[0].claim, setting.origin.stat

    def flushed(call, *arguments):
        setting.stager.flush()
        setting.stager.flush()
        return call(*arguments)

    monkeypatch.setattr(setting.stores[0], "claim", functools.partial(flushed, claim))
    monkeypatch.setattr(setting.origin, "stat", functools.partial(flushed, stat))
    wanted = setting.wanted(setting.paths)
    setting.stager.stage(wanted, lambda answers: done.append(len(answers)), partly=lambda _: None)
    while setting._jobs:
        setting._jobs.popleft()()
    assert done == [6]
    assert setting.outcomes(*setting.paths) == [FOUND] * 6
    setting.close()


@in_a_process
def test_copies_whose_generation_goes_before_they_are_published_are_not_answered(
    tmp_path, monkeypatch
):
    setting = Setting(tmp_path, contents_of(2))
    publish = setting.stores[0].publish

    def publish_late(*arguments, **options):
        discard(generation_of(str(setting.directories[0])))
        return publish(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(setting.stores[0], "publish", publish_late)
        assert setting.outcomes(*setting.paths) == [FAILED] * 2
    assert setting.outcomes(*setting.paths) == [COPIED] * 2
    setting.close()


@in_a_process
def test_a_file_beyond_the_limit_of_file_sizes_leaves_the_others_of_its_part_alone(tmp_path):
    sizes = [20_000, 20_000, 250_000, 20_000, 20_000]
    setting = Setting(tmp_path, {f"{SOURCE}/{i}": bytes([i]) * n for i, n in enumerate(sizes)})
    setting.stores[0].look([])  # the index is made without the limit
    setting.stores[0].close()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (240 << 10, resource.RLIM_INFINITY))
    assert setting.outcomes(*setting.paths) == [COPIED, COPIED, FAILED, COPIED, COPIED]
    setting.close()


@pytest.mark.parametrize("size_bytes", [100_000, 300_000])
@in_a_process
def test_room_for_just_the_files_of_a_part_is_enough(tmp_path, size_bytes):
    n_blocks = 5 * -(-size_bytes // BLOCK_BYTES)
    setting = Setting(tmp_path, contents_of(5, size_bytes), n_blocks)
    assert setting.outcomes(setting.paths[0]) == [COPIED]
    outcomes = setting.outcomes(*setting.paths[1:], make_room=lambda *_: False)
    assert outcomes == [COPIED] * 4
    setting.close()
