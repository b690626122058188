"""Files that another node sends: compared with their sources once, whatever their size."""

from __future__ import annotations

import io
import os

import pytest

from overlapiter.origins.origin import Original
from overlapiter.store.elsewhere import Holders, Take
from overlapiter.store.extents import checksum_of
from overlapiter.store.outcome import Outcome
from tests.store.actors import in_a_process
from tests.store.stagers import Setting, contents_of
from tests.store.stores import SOURCE
from tests.support import staged
from tests.support.origins import OLD_NS


class Node:
    """A node that has staged all files in an earlier run."""

    def __init__(self, contents: dict[str, bytes], mtime: int) -> None:
        self._contents, self._mtime = contents, mtime
        self.setting: Setting

    def fetch(self, name: bytes, _holders: Holders, take: Take) -> None:
        path = f"{SOURCE}/{os.fsdecode(name)}"
        file = Sent(self._contents[path], self.setting.stores[0].key_of(path), self._mtime)
        if not take(file):
            take(None)


class Sent(io.BytesIO):
    is_fresh = False

    def __init__(self, data: bytes, key: int, mtime: int) -> None:
        super().__init__(data)
        self.checksum = checksum_of(data, key, mtime)
        self._original = Original(len(data), mtime)

    def stat(self) -> Original:
        return self._original


@pytest.mark.parametrize("size_bytes", [4000, 300_000, 5 << 20])
@in_a_process
def test_what_an_earlier_run_has_staged_elsewhere_is_not_read_again(tmp_path, size_bytes):
    contents = contents_of(3, size_bytes)
    node = Node(contents, OLD_NS)
    node.setting = setting = Setting(tmp_path, contents, peers=node)
    assert setting.outcomes(*setting.paths) == [Outcome.FETCHED] * 3
    assert not setting.origin.n_opened
    setting.close()


@pytest.mark.parametrize("size_bytes", [4000, 300_000, 5 << 20])
@in_a_process
def test_what_has_changed_since_is_read_and_no_room_is_lost(tmp_path, size_bytes):
    contents = contents_of(3, size_bytes)
    node = Node({path: bytes(size_bytes) for path in contents}, OLD_NS - 10**9)
    node.setting = setting = Setting(tmp_path, contents, peers=node)
    assert setting.outcomes(*setting.paths) == [Outcome.COPIED] * 3
    staged.assert_accounted(setting.directories[0])
    setting.close()


@in_a_process
def test_a_file_has_one_name_on_all_nodes_whatever_their_locale(tmp_path, monkeypatch):
    contents = {f"{SOURCE}/ä.bin": bytes(4000)}
    node = Node(contents, OLD_NS)
    node.setting = setting = Setting(tmp_path, contents, peers=node)
    monkeypatch.setattr(os, "fsencode", lambda path: path.encode("latin-1"))  # as this one's may be
    assert setting.outcomes(*setting.paths) == [Outcome.FETCHED]
    setting.close()
