"""A stager whose small files are read in bulk, from real files."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overlapiter.origins.bulk import bulk_of
from overlapiter.origins.origin import LocalFile, LocalOrigin, Original
from overlapiter.store.comparer import Validation
from overlapiter.store.outcome import MakeRoom, Outcome, Staged
from overlapiter.store.site import Run, Site
from overlapiter.store.slowstore import CHUNK_BYTES
from overlapiter.store.stager import Stager
from overlapiter.store.store import Store, Wanted
from tests.store.stores import BLOCK_BYTES
from tests.support import staged


class NeverAsked(LocalOrigin):
    def open(self, path: str) -> LocalFile:
        raise AssertionError(f"{path} is opened one by one")

    def stat(self, path: str) -> Original:
        raise AssertionError(f"{path} is looked at one by one")


def stage_in_bulk(
    folder: Path,
    paths: list[Path],
    n_blocks: int | None = None,
    make_room: MakeRoom | None = None,
    validate: Validation = "mtime",
) -> dict[str, Staged]:
    """Return what becomes of files, by their names; each copy is what its source is."""
    origin = NeverAsked()
    bulk = bulk_of(origin, CHUNK_BYTES)
    if bulk is None:
        pytest.skip("overlapiter was installed without a compiler")
    bulk.resize(3)
    site = Site(str(folder / "staging"), n_blocks and n_blocks * BLOCK_BYTES)
    store = Store(site, str(paths[0].parent), Run(1, {}), warn=pytest.fail)
    jobs: collections.deque[Callable[[], None]] = collections.deque()
    stager = Stager([store], origin, validate, jobs.append, pytest.fail, bulk=bulk)
    wanted = {path: Wanted(store.key_of(str(path)), str(path)) for path in paths}
    answers: dict[int, Staged] = {}
    stager.stage([*wanted.values()], answers.update, make_room, partly=lambda _answers: None)
    deadline = time.monotonic() + 20
    while len(answers) < len(paths):
        assert time.monotonic() < deadline
        stager.take_read(bulk.take())
        while jobs:
            jobs.popleft()()
    stager.close()
    bulk.resize(0)
    for path, (key, _) in wanted.items():
        extent = answers[key].extent
        if extent is not None:
            assert staged.read_staged(folder / "staging", extent) == path.read_bytes()
    return {path.name: answers[key] for path, (key, _) in wanted.items()}


def made(folder: Path, sizes: list[int]) -> list[Path]:
    source = folder / "source"
    source.mkdir()
    paths = [source / f"{n}.bin" for n in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(os.urandom(size))
        os.utime(path, (1e9, 1e9))
    return paths


def test_small_large_empty_and_missing_files_of_one_part(tmp_path: Path) -> None:
    sizes = [20_000] * 70 + [CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7, 0]
    paths = made(tmp_path, sizes)
    missing = paths[0].parent / "missing"
    answers = stage_in_bulk(tmp_path, [*paths, missing])
    outcomes = {name: answer.outcome for name, answer in answers.items()}
    failed = {paths[-1].name, missing.name}
    assert {name for name, found in outcomes.items() if found is not Outcome.COPIED} == failed
    assert {outcomes[name] for name in failed} == {Outcome.SOURCE_FAILED}
    assert all(answers[path.name].read_ns > 0 for path in paths[:-1])


def test_files_for_which_there_is_no_room_are_refused_and_the_capacity_holds(
    tmp_path: Path,
) -> None:
    paths = made(tmp_path, [BLOCK_BYTES] * 90)
    asked: list[int] = []

    def make_room(tier: int, _size_bytes: int) -> bool:
        asked.append(tier)
        return False

    answers = stage_in_bulk(tmp_path, paths, 20, make_room)
    n_copied = sum(answer.outcome is Outcome.COPIED for answer in answers.values())
    assert 0 < n_copied <= 20
    assert {answer.outcome for answer in answers.values()} == {Outcome.COPIED, Outcome.REFUSED}
    assert asked
    assert staged.charged_bytes(tmp_path / "staging") <= 20 * BLOCK_BYTES


@pytest.mark.parametrize("validate", ["mtime", "checksum"])
def test_copies_are_compared_with_their_sources(tmp_path: Path, validate: Validation) -> None:
    paths = made(tmp_path, [20_000] * 70)
    stage_in_bulk(tmp_path, paths, validate=validate)
    changed, touched, gone = paths[3], paths[40], paths[69]
    changed.write_bytes(os.urandom(20_001))
    os.utime(changed, (1e9, 1e9))
    os.utime(touched, (2e9, 2e9))
    gone.unlink()
    new = paths[0].parent / "new"
    new.write_bytes(b"new")
    answers = stage_in_bulk(tmp_path, [*paths, new], validate=validate)
    outcomes = {name: answer.outcome for name, answer in answers.items()}
    assert outcomes.pop(gone.name) is Outcome.SOURCE_FAILED
    copied = {changed.name, touched.name, new.name}
    assert {name for name, found in outcomes.items() if found is Outcome.COPIED} == copied
    assert {outcomes[name] for name in outcomes.keys() - copied} == {Outcome.FOUND}
