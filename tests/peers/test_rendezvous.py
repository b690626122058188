"""How ranks find each other: by a directory, by a store, and at which address."""

from __future__ import annotations

import collections
import errno
import json
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from overlapiter.errors import OptionError, StagingWarning
from overlapiter.node import Host
from overlapiter.peers import meeting, rendezvous
from overlapiter.peers.interfaces import address_among
from overlapiter.peers.meeting import Rendezvous, StoreCommunicator
from overlapiter.peers.rendezvous import communicator_of, from_all, join
from overlapiter.scatter import ScatteredOrder

SIZE = 4


def gathered(make: Callable[[int], Any]) -> list[list[Any]]:
    """Have all ranks gather twice; return what the last call gave each."""

    def run(rank: int) -> Any:
        comm = make(rank)
        comm.allgather(None)
        return comm.allgather({"rank": rank})

    with ThreadPoolExecutor(SIZE) as ranks:
        return [*ranks.map(run, range(SIZE))]


EXPECTED = [[{"rank": rank} for rank in range(SIZE)]] * SIZE


def test_ranks_meet_in_a_directory(tmp_path: Path) -> None:
    assert gathered(lambda rank: Rendezvous(tmp_path / "meet", rank, SIZE)) == EXPECTED
    assert {path.stat().st_mode & 0o77 for path in (tmp_path / "meet").iterdir()} == {0}


def test_what_an_earlier_job_has_left_there_does_no_harm(tmp_path: Path) -> None:
    for _ in range(3):
        assert gathered(lambda rank: Rendezvous(tmp_path / "meet", rank, SIZE)) == EXPECTED


def test_what_a_smaller_job_has_left_there_does_no_harm(tmp_path: Path) -> None:
    Rendezvous(tmp_path / "meet", 0, 1).allgather("alone")
    late = threading.Event()

    def gather(rank: int) -> list[Any]:
        meeting_place = Rendezvous(tmp_path / "meet", rank, SIZE)
        if rank == 0:
            late.wait(1.0)  # the others find what the smaller job has left
        return meeting_place.allgather({"rank": rank})

    with ThreadPoolExecutor(SIZE) as ranks:
        assert [*ranks.map(gather, range(SIZE))] == EXPECTED


@pytest.mark.parametrize("left", [b"", b'{"word": "a', bytes(80), b"\xff"])
def test_what_a_file_server_that_failed_has_left_there_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 20.0)
    (tmp_path / "meet").mkdir(0o700)
    for file in ("all", "1"):
        (tmp_path / "meet" / file).write_bytes(left)
    assert gathered(lambda rank: Rendezvous(tmp_path / "meet", rank, SIZE)) == EXPECTED


def test_ranks_meet_in_one_directory_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 20.0)

    def run(rank: int) -> list[Any]:
        return [Rendezvous(tmp_path / "meet", rank, SIZE).allgather(call) for call in range(3)]

    with ThreadPoolExecutor(SIZE) as ranks:
        assert [*ranks.map(run, range(SIZE))] == [[[call] * SIZE for call in range(3)]] * SIZE


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, failures = json.load, [OSError(errno.ESTALE, "Stale file handle")] * 3

    def load_or_fail(file: Any) -> Any:
        if failures:
            raise failures.pop()
        return load(file)

    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 20.0)
    monkeypatch.setattr(json, "load", load_or_fail)
    assert gathered(lambda rank: Rendezvous(tmp_path / "meet", rank, SIZE)) == EXPECTED


def test_a_rank_beyond_the_number_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no rank 2 among 2"):
        Rendezvous(tmp_path / "meet", 2, 2)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"peers: .*meet cannot be made or looked at \(No such"):
        Rendezvous(tmp_path / "nowhere" / "meet", 0, SIZE)


def test_a_directory_without_room_is_named_and_nothing_is_left_there(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    comm = Rendezvous(tmp_path / "meet", 0, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OptionError, match=r"peers: .*meet/all cannot be written \(File too"):
            comm.allgather("here")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*(tmp_path / "meet").iterdir()]


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meet").mkdir()
    (tmp_path / "meet").chmod(0o777)
    with pytest.raises(OptionError, match="can be written by others"):
        Rendezvous(tmp_path / "meet", 0, SIZE)


def test_a_rank_that_does_not_come_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(OptionError, match=r"ranks \[1\] have not come"):
        Rendezvous(tmp_path / "meet", 0, 2).allgather("here")


def test_a_rank_that_cannot_begin_says_so_at_once_and_raises_its_own_error_whoever_else_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("no lock can be pickled")

    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 0.1)
    with (
        pytest.warns(StagingWarning, match="rank 0 tells the others .* no lock can be pickled"),
        pytest.raises(ValueError, match="no lock can be pickled"),
    ):
        from_all(Rendezvous(tmp_path / "meet", 0, 2), fail)


class Store:
    """What ``torch.distributed``'s stores do."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._numbers: collections.Counter[str] = collections.Counter()
        self._changes = threading.Condition()

    def add(self, key: str, amount: int) -> int:
        with self._changes:
            self._numbers[key] += amount
            return self._numbers[key]

    def set(self, key: str, value: str) -> None:
        with self._changes:
            assert key not in self._values
            self._values[key] = value.encode()
            self._changes.notify_all()

    def get(self, key: str) -> bytes:
        with self._changes:
            self._changes.wait_for(lambda: key in self._values)
            return self._values[key]


def test_ranks_meet_in_a_store_of_torch() -> None:
    store = Store()
    stores = [StoreCommunicator(store, rank, SIZE) for rank in range(SIZE)]
    StoreCommunicator(store, 0, 1).allgather("alone")  # as to evaluate
    assert gathered(lambda rank: stores[rank]) == EXPECTED


def test_what_peers_may_be(tmp_path: Path) -> None:
    comm = Rendezvous(tmp_path, 1, 4)
    assert communicator_of(comm, 1, 4) is comm
    assert isinstance(communicator_of(str(tmp_path), 1, 4), Rendezvous)
    assert isinstance(communicator_of(Store(), 1, 4), StoreCommunicator)
    with pytest.raises(OptionError, match="rank 1 of 4, but scatter_order was given one of rank 0"):
        communicator_of(comm, 0, 4)
    with pytest.raises(OptionError, match="no communicator, no directory and no store"):
        communicator_of(3, 0, 4)


@pytest.mark.parametrize(
    ("addresses", "is_one_host", "expected"),
    [
        ([{"eth0": "10.0.0.1"}, {"eth0": "10.0.0.2"}], False, "10.0.0.2"),
        ([{"eth0": "10.0.0.1"}] * 2, True, "127.0.0.1"),
        (
            [
                {"docker0": "172.17.0.1", "ib0": "10.1.0.1", "eth0": "10.0.0.1"},
                {"docker0": "172.17.0.1", "eth0": "10.0.0.2", "ib0": "10.1.0.2"},
            ],
            False,
            "10.1.0.2",
        ),
        ([{"": "10.0.0.1"}, {"": "10.0.0.9"}], True, "10.0.0.9"),
    ],
    ids=["common", "one host", "bridges and the fastest", "named"],
)
def test_the_address_of_a_rank(
    addresses: list[dict[str, str]], is_one_host: bool, expected: str
) -> None:
    assert address_among(addresses, 1, is_one_host=is_one_host) == expected


def test_nodes_without_a_common_network_are_told_what_to_do() -> None:
    with pytest.raises(OptionError, match=r"OVERLAPITER_INTERFACE.*no network interface in common"):
        address_among([{"eth0": "10.0.0.1"}, {"ens1": "10.0.0.2"}], 1, is_one_host=False)


def test_a_named_address_that_is_none_of_this_node_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair:
        """A communicator whose other rank is on another node."""

        rank, size = 0, 2

        def allgather(self, item: Any) -> list[Any]:
            made, _ = item
            return [item, (made and ("other", *made[1:]), "")]

    monkeypatch.setenv("OVERLAPITER_INTERFACE", "203.0.113.9")
    with pytest.raises(OptionError, match=r"OVERLAPITER_INTERFACE: .* listen at 203\.0\.113\.9"):
        join(Pair(), ScatteredOrder(0, 2, seed=1), 10)


def test_what_one_rank_cannot_do_is_told_on_all_and_none_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_addresses() -> dict[str, str]:
        if threading.current_thread().name.endswith("_0"):
            raise OptionError("OVERLAPITER_INTERFACE", "'ib0' is no interface of node-3")
        return {"eth0": "10.0.0.1"}

    def run(rank: int) -> str:
        order = ScatteredOrder(rank, 2, seed=1)
        with pytest.raises(OptionError) as caught:
            join(Rendezvous(tmp_path / "meet", rank, 2), order, 10)
        return str(caught.value)

    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 20.0)
    monkeypatch.setattr(rendezvous, "own_addresses", own_addresses)
    with ThreadPoolExecutor(2) as ranks:
        told = [*ranks.map(run, range(2))]
    own = "OVERLAPITER_INTERFACE: 'ib0' is no interface of node-3"
    assert told == [own, f"peers: rank 0 cannot take part: OptionError: {own}"]


def test_an_address_that_one_rank_alone_names_leaves_none_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_addresses() -> dict[str, str]:
        is_first = threading.current_thread().name.endswith("_0")
        return {"": "127.0.0.1"} if is_first else {"eth0": "10.0.0.1"}

    def this_host() -> Host:
        name = threading.current_thread().name
        return Host(name, name, is_named=True, cores=())

    def run(rank: int) -> str:
        order = ScatteredOrder(rank, 2, seed=1)
        with pytest.raises(OptionError) as caught:
            join(Rendezvous(tmp_path / "meet", rank, 2), order, 10)
        return str(caught.value)

    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 20.0)
    monkeypatch.setattr(rendezvous, "own_addresses", own_addresses)
    monkeypatch.setattr(rendezvous, "this_host", this_host)
    with ThreadPoolExecutor(2) as ranks:
        told = [*ranks.map(run, range(2))]
    assert all("no network interface in common" in text for text in told)
