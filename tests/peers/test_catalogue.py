"""What a server finds in a node's tiers, as a peer is told."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.store_access import stage_bytes, store_in
from overlapiter.peers.connection import Connection
from overlapiter.peers.protocol import ABSENT, FRESH
from overlapiter.store.generation import discard, generation_of, index_path
from overlapiter.store.index import PATIENCE_SECONDS
from overlapiter.store.store import Store
from tests.chainer.scripts import wait_until
from tests.peers.serving import FILE_BYTES, SECRET, SOURCE, content, name, served

IN_FAST, IN_SLOW = content()[:FILE_BYTES], bytes(1000)


class Node:
    """A node with two tiers; files 0 to 7 are staged in the faster one.

    Args:
        directories: The staging directories.
        connection: To its server.
    """

    def __init__(self, directories: list[Path], connection: Connection) -> None:
        self._directories = directories
        self._connection = connection

    @contextlib.contextmanager
    def tier(self, number: int) -> Iterator[Store]:
        with contextlib.closing(store_in(str(self._directories[number]), SOURCE)) as store:
            yield store

    def stage_in_slow(self, *numbers: int) -> None:
        with self.tier(1) as store:
            stage_bytes(store, [name(number).decode() for number in numbers], IN_SLOW)

    @property
    def index_path(self) -> str:
        return index_path(generation_of(str(self._directories[0])))

    def throw_fast_away(self) -> None:
        discard(generation_of(str(self._directories[0])))

    def given(self, *numbers: int) -> list[bytes | int]:
        """Ask for files; return the bytes of each, or what the server says of it."""
        self._connection.ask([name(number) for number in numbers])
        records = self._connection.answer(len(numbers))
        return [self._connection.read(r.size) if r.state == FRESH else r.state for r in records]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    directories = [tmp_path / "fast", tmp_path / "slow"]
    with (
        served(*directories) as (address, _),
        contextlib.closing(Connection(address, SECRET, wait_seconds=60.0)) as connection,
    ):
        yield Node(directories, connection)


def test_a_file_comes_from_the_fastest_tier_that_has_it(node: Node) -> None:
    assert node.given(1, 11) == [IN_FAST, ABSENT]  # the slower tier has no index yet
    node.stage_in_slow(1, 11)
    assert node.given(0, 11, 1, 12) == [IN_FAST, IN_SLOW, IN_FAST, ABSENT]


def test_what_a_tier_that_was_thrown_away_had_comes_from_the_other(node: Node) -> None:
    node.stage_in_slow(1)
    assert node.given(0, 1) == [IN_FAST, IN_FAST]
    node.throw_fast_away()
    assert node.given(0, 1) == [ABSENT, IN_SLOW]


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA locking_mode=EXCLUSIVE")
connection.execute("BEGIN IMMEDIATE")
print(flush=True)
sys.stdin.read()
"""


def test_an_index_that_is_locked_holds_up_one_request(node: Node) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCK, node.index_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as locker:
        assert locker.stdout is not None
        locker.stdout.readline()
        began = time.monotonic()
        assert [node.given(0) for _ in range(5)] == [[ABSENT]] * 5
        assert time.monotonic() - began < 2 * PATIENCE_SECONDS
        locker.communicate()
    wait_until(lambda: node.given(0) == [IN_FAST], 10)
