"""What a prefetcher does while nobody asks anything of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from overlapiter.staging.advance import ADVANCE_BYTES, N_CELLS, Advance
from overlapiter.staging.room import Room
from overlapiter.staging.store import Store
from overlapiter.staging.usage import UsageFile
from overlapiter.stats import Counter, Row
from overlapiter.workers.ipc.channel import Channel
from overlapiter.workers.prefetcher.prefetcher import Prefetcher
from overlapiter.workers.prefetcher.staging_work import StageTask

N_FILES = 8
FILE_BYTES = 1000
STAGED_BYTES = 64 * ADVANCE_BYTES
DEADLINE_SECONDS = 30


class Files:
    """A dataset that declares its files."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder / str(number)) for number in range(N_FILES)]
        for path in self.paths:
            Path(path).write_bytes(b"x" * FILE_BYTES)

    def __len__(self) -> int:
        return N_FILES

    def __getitem__(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()

    def source_paths(self, index: int) -> list[str]:
        return [self.paths[index]]


def test_what_the_last_part_before_a_rest_was_granted_in_advance_is_given_back(tmp_path):
    source, directory = tmp_path / "source", tmp_path / "staging"
    source.mkdir()
    directory.mkdir()
    dataset = Files(source)
    assert Room(str(directory), None, 0).reserve(STAGED_BYTES)  # so that advances are whole
    cells = memoryview(bytearray(8 * N_CELLS)).cast("q")
    room = Room(str(directory), None, 0, advance=Advance(cells))
    store = Store(str(directory), str(source), room)
    store.create()
    ours, its = Channel.pair()
    validated = memoryview(bytearray(8 * N_FILES)).cast("Q")
    row = Row(memoryview(bytearray(8 * len(Counter))).cast("q"))
    prefetcher = Prefetcher(its, dataset, [store], validated, 2, "i", row)
    thread = threading.Thread(target=prefetcher.run)
    thread.start()
    indices = list(range(N_FILES))
    ours.send(("stage", StageTask(1, indices, 1, [], [-1] * N_FILES, None)))
    assert ours.receive()[0][0] == "staged"
    assert UsageFile(str(directory)).look().granted_bytes > STAGED_BYTES + ADVANCE_BYTES
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not room.is_at_rest and time.monotonic() < deadline:
        time.sleep(0.01)
    ours.close()
    thread.join()
    its.close()
    store.close()
    assert UsageFile(str(directory)).look().used_bytes == STAGED_BYTES + N_FILES * FILE_BYTES
