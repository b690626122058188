"""A channel delivers whole messages in order, with their descriptors, or says that it is over."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.workers.ipc import channel as channel_module
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError


@pytest.fixture
def ends():
    one, other = Channel.pair()
    yield one, other
    one.close()
    other.close()


def open_fds() -> set[str]:
    return {*os.listdir("/proc/self/fd")}


def test_messages_come_whole_and_in_order(ends):
    one, other = ends
    messages = [("batch", n, [n] * n, {"x": None}) for n in range(50)]
    for message in messages:
        one.send(message)
    assert [other.receive() for _ in messages] == [(message, []) for message in messages]


def test_both_directions_are_independent(ends):
    one, other = ends
    one.send(("to", 1))
    other.send(("fro", 2))
    assert one.receive() == (("fro", 2), [])
    assert other.receive() == (("to", 1), [])


def test_messages_around_and_beyond_the_size_of_a_packet_come_whole(ends):
    one, other = ends
    for margin in (*range(-60, 10), 10**6):
        message = ("data", os.urandom(channel_module._PACKET_BYTES + margin))
        one.send(message)
        one.send(("next",))
        assert other.receive() == (message, [])
        assert other.receive() == (("next",), [])


@given(sizes=st.lists(st.integers(0, 200_000), max_size=6))
def test_small_and_large_messages_mix_in_order(sizes):
    one, other = Channel.pair()
    try:
        for n, size in enumerate(sizes):
            one.send((n, bytes(size)))
        assert [other.receive()[0] for _ in sizes] == [(n, bytes(s)) for n, s in enumerate(sizes)]
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("size_bytes", [1, 10**6])
def test_descriptors_travel_and_stay_with_the_sender_too(ends, size_bytes):
    one, other = ends
    read_end, write_end = os.pipe()
    one.send(("fds", bytes(size_bytes)), (read_end, write_end))
    os.close(read_end)
    (_, data), (got_read, got_write) = other.receive()
    assert len(data) == size_bytes
    os.write(write_end, b"a")
    os.write(got_write, b"b")
    assert os.read(got_read, 2) == b"ab"
    assert not os.get_inheritable(got_read)
    for fd in (write_end, got_read, got_write):
        os.close(fd)


def test_as_many_descriptors_as_are_promised_travel_even_with_a_large_message(ends):
    one, other = ends
    fds = tuple(os.memfd_create(f"{n}") for n in range(channel_module._MAX_FDS - 1))
    one.send(("fds", bytes(10**5)), fds)
    _, got = other.receive()
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in got]
    assert names == [f"/memfd:{n} (deleted)" for n in range(channel_module._MAX_FDS - 1)]
    for fd in (*fds, *got):
        os.close(fd)


def test_large_messages_leave_no_descriptor(ends):
    one, other = ends
    before = open_fds()
    for _ in range(5):
        one.send(("data", bytes(10**6)))
        other.receive()
    assert open_fds() == before


def test_an_empty_channel_is_not_waited_for_if_so_asked(ends):
    with pytest.raises(BlockingIOError):
        ends[1].receive(wait=False)
    ends[0].send(("now",))
    assert ends[1].receive(wait=False) == (("now",), [])


@pytest.mark.parametrize("size_bytes", [10, 10**6])
def test_a_full_channel_is_not_waited_for_if_so_asked_and_loses_nothing(ends, size_bytes):
    one, other = ends
    before = open_fds()
    n_sent = 0
    with contextlib.suppress(BlockingIOError):
        while n_sent < 10**6:
            one.send((n_sent, bytes(size_bytes)), wait=False)
            n_sent += 1
    assert 0 < n_sent < 10**6
    for n in range(n_sent):
        assert other.receive()[0] == (n, bytes(size_bytes))
    one.send(("again",), wait=False)
    assert other.receive()[0] == ("again",)
    assert open_fds() == before


def test_a_full_channel_is_waited_for_otherwise(ends):
    one, other = ends

    def send_all() -> None:
        for n in range(2000):
            one.send((n, bytes(1000)))

    thread = threading.Thread(target=send_all)
    thread.start()
    assert [other.receive()[0][0] for _ in range(2000)] == [*range(2000)]
    thread.join()


def test_several_threads_may_send(ends):
    one, other = ends

    def send_all(sender: int) -> None:
        for n in range(200):
            one.send((sender, n, bytes(1000 * (n % 3 == 0) + 70_000 * (n % 50 == 0))))

    threads = [threading.Thread(target=send_all, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    got = [other.receive()[0][:2] for _ in range(800)]
    for thread in threads:
        thread.join()
    for sender in range(4):
        assert [n for s, n in got if s == sender] == [*range(200)]


def test_what_was_sent_before_closing_still_comes(ends):
    one, other = ends
    one.send(("last",))
    one.close()
    assert other.receive() == (("last",), [])
    for wait in (True, False):
        with pytest.raises(ChannelClosedError):
            other.receive(wait=wait)


@pytest.mark.parametrize("size_bytes", [1, 10**6])
def test_sending_to_nobody_is_told_and_leaks_nothing(ends, size_bytes):
    one, other = ends
    one.send(("unread",))
    other.close()
    before = open_fds()
    for _ in range(3):
        with pytest.raises(ChannelClosedError):
            one.send(("data", bytes(size_bytes)))
    assert open_fds() == before
    with pytest.raises(ChannelClosedError):
        one.receive()


def test_an_end_closed_here_receives_nothing_and_closes_again(ends):
    ends[0].close()
    ends[0].close()
    with pytest.raises(ChannelClosedError):
        ends[0].receive()


def test_an_end_closed_here_is_not_waited_on(ends):
    one, _ = ends
    one.close()
    assert one.is_readable(60.0)
    assert one.has_room(60.0)


def test_what_cannot_be_pickled_is_told_to_the_sender_and_harms_nobody(ends):
    with pytest.raises(Exception, match="pickle"):
        ends[0].send(("lock", threading.Lock()))
    ends[0].send(("fine",))
    assert ends[1].receive() == (("fine",), [])


def test_a_channel_goes_on_from_its_descriptor(ends):
    one, other = ends
    again = Channel.from_fd(os.dup(other.fileno()))
    one.send(("hello",))
    assert again.receive() == (("hello",), [])
    again.close()


@pytest.mark.parametrize("size_bytes", [100, 10**6])
def test_a_sender_killed_at_any_moment_leaves_only_whole_messages(size_bytes):
    ours, theirs = Channel.pair()
    pid = os.fork()
    if not pid:
        ours.close()
        n = 0
        while True:
            theirs.send((n, bytes([n % 256]) * size_bytes))
            n += 1
    theirs.close()
    for n in range(20):
        assert ours.receive()[0] == (n, bytes([n]) * size_bytes)
    os.kill(pid, signal.SIGKILL)
    left = []
    with contextlib.suppress(ChannelClosedError):
        while True:
            left.append(ours.receive()[0])
    assert left == [(n, bytes([n % 256]) * size_bytes) for n in range(20, 20 + len(left))]
    os.waitpid(pid, 0)
    ours.close()


def test_the_end_of_the_other_process_wakes_who_waits():
    ours, theirs = Channel.pair()
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(1)
    theirs.close()
    assert select.select([ours], [], [], 0)[0] == []
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ChannelClosedError):
        ours.receive()
    os.waitpid(pid, 0)
    ours.close()


# --- the limit of descriptors -----------------------------------------------------------------


@pytest.fixture
def limited():
    """A function that leaves ``n`` descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []

    def leave(n: int) -> None:
        limit = max(map(int, open_fds())) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(2))
        for _ in range(n):
            os.close(held.pop())

    yield leave
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [10, 200_000])
@pytest.mark.parametrize("n_left", [0, 1, 2])
def test_descriptors_that_find_no_room_are_told_and_none_is_left_open(
    ends, limited, n_left, size_bytes
):
    sent = [os.dup(2) for _ in range(3)]
    ends[0].send(("segment", b"x" * size_bytes), tuple(sent))
    ends[0].send(("next",))
    for fd in sent:
        os.close(fd)
    limited(n_left)
    with pytest.raises(OSError, match="ulimit -n") as caught:
        ends[1].receive()
    assert caught.value.errno == 24
    left = [os.dup(2) for _ in range(n_left)]
    for fd in left:
        os.close(fd)
    assert ends[1].receive() == (("next",), [])


def test_channels_leave_some_descriptors_to_others_and_name_the_limit(limited):
    limited(8)
    for _ in range(2):
        with pytest.raises(OSError, match="ulimit -n"):
            Channel.pair()
    spare = [os.dup(2) for _ in range(8)]  # they are all still there
    for fd in spare:
        os.close(fd)
