"""Files above 1 MiB beside small ones, in a directory that is smaller than both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import overlapiter
from overlapiter import Staging
from tests.support.engine import Engine
from tests.support.staged import flip, staged_paths

N_LARGE, N_SMALL = 12, 6
LARGE_BYTES, SMALL_BYTES = 1_200_000, 300_000


class Files:
    """Gives the size of each file."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(Path(self.paths[index]).read_bytes())

    def source_paths(self, index: int) -> list[str]:
        """Return the file of an example."""
        return [self.paths[index]]


class Damaged(Files):
    """Gives the files; a copy is damaged once, when it was opened and nothing was read yet."""

    def __init__(self, paths: list[str], fast: Path, *, is_by_path: bool) -> None:
        super().__init__(paths)
        self.fast, self.is_by_path = fast, is_by_path

    def __getitem__(self, index: int) -> bytes:
        path = self.paths[index]
        with open(overlapiter.local_path(path) if self.is_by_path else path, "rb", 0) as file:
            extent = staged_paths(self.fast).get(Path(path).name)
            if extent is not None and not Path(f"{path}-damaged").exists():
                Path(f"{path}-damaged").touch()
                flip(self.fast, extent)
            return file.read()


@pytest.mark.parametrize("is_by_path", [False, True])
def test_a_copy_that_is_damaged_while_it_is_read_comes_into_no_mini_batch(
    tmp_path: Path, is_by_path: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    paths = [str(source / str(number)) for number in range(4)]
    for path in paths:
        Path(path).write_bytes(os.urandom(LARGE_BYTES))
        os.utime(path, (10**9, 10**9))
    right = [Path(path).read_bytes() for path in paths]
    dataset = Damaged(paths, tmp_path / "fast", is_by_path=is_by_path)
    staging = Staging(tmp_path / "fast", source=source, n_prefetchers=1)
    with Engine(dataset, 2, n_readers=1, staging=staging) as engine:
        found = [example for _ in range(6) for example in next(engine)]
    assert all(Path(f"{path}-damaged").exists() for path in paths)
    assert found == 3 * right


def test_room_of_evicted_files_serves_large_ones_as_small_ones(tmp_path: Path) -> None:
    """What one process reserves for its small files would else keep the large ones out."""
    source = tmp_path / "source"
    source.mkdir()
    paths = []
    for number in range(N_LARGE + N_SMALL):
        path = source / str(number)
        path.write_bytes(os.urandom(SMALL_BYTES if number % 3 == 0 else LARGE_BYTES))
        paths.append(str(path))
    n_bytes = N_LARGE * LARGE_BYTES + N_SMALL * SMALL_BYTES
    staging = Staging(
        tmp_path / "fast", source=source, capacity=int(0.7 * n_bytes), n_prefetchers=1
    )
    n_epochs = 4
    with Engine(Files(paths), 2, n_readers=1, staging=staging) as engine:
        for _ in range(n_epochs * len(paths) // 2):
            next(engine)
        stats = engine.stats()

    assert stats.files_evicted > 0
    # One may go to the source when its copy has just made room; not all large ones.
    assert stats.opens_source <= n_epochs
