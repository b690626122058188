"""Flips, cuts and swaps bytes of segments and index; then every byte that is read must be right.

    python -m tests.store.damage [--trials N] [--seed N]

A trial stages files, damages some places, while a process has the store open or not, and uses the
store as a run does. Prints a line for each trial that went wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from overlapiter.store import segments
from overlapiter.store.extents import ExtentReader
from overlapiter.store.generation import generation_of
from overlapiter.store.store import Store
from tests.store.stores import BLOCK_BYTES, Files, made_store, read, stage, staged

FILES = Files(24, most_bytes=2 * BLOCK_BYTES)
CAPACITY_BYTES = 2 * FILES.blocks_bytes
DAMAGES_EACH = 10
#: No step takes a hundredth of it; the store itself gives up after two seconds.
HANGING_SECONDS = 30

segments.SEGMENT_BYTES = 12 * BLOCK_BYTES


def flip(fd: int, size_bytes: int, numbers: random.Random) -> None:
    at = numbers.randrange(size_bytes)
    (byte,) = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte ^ 1 << numbers.randrange(8)]), at)


def overwrite(fd: int, size_bytes: int, numbers: random.Random) -> None:
    os.pwrite(fd, numbers.randbytes(numbers.randint(1, 64)), numbers.randrange(size_bytes))


def cut(fd: int, size_bytes: int, numbers: random.Random) -> None:
    os.ftruncate(fd, numbers.randrange(size_bytes))


def swap(fd: int, size_bytes: int, numbers: random.Random) -> None:
    length = numbers.choice([1, 8, 512, BLOCK_BYTES])
    one, other = (numbers.randrange(size_bytes) // length * length for _ in range(2))
    data = os.pread(fd, length, one), os.pread(fd, length, other)
    os.pwrite(fd, data[1], one)
    os.pwrite(fd, data[0], other)


def inflict(directory: Path, numbers: random.Random) -> list[str]:
    """Damage the store at some places; return what was done. The -shm file is never cut."""
    generation = Path(generation_of(str(directory)))
    index = [path for path in generation.glob("index.sqlite*") if path.stat().st_size]
    bytes_of = [path for path in generation.glob("segments/*") if path.stat().st_size]
    done = []
    for _ in range(DAMAGES_EACH):
        path = numbers.choice(numbers.choice([index, bytes_of]))
        kinds = [flip] * 5 + [overwrite, swap] + [cut] * (not path.name.endswith("-shm"))
        kind = numbers.choice(kinds)
        fd = os.open(path, os.O_RDWR)
        size_bytes = os.fstat(fd).st_size
        if size_bytes:
            kind(fd, size_bytes, numbers)
            done.append(f"{kind.__name__} {path.name}")
        os.close(fd)
    return done


def check(store: Store, reader: ExtentReader) -> None:
    """Read all that is staged, as the index says; drop what is damaged."""
    damaged = []
    for path, extent in staged(store, FILES).items():
        data = read(reader, extent)
        assert data in (None, FILES.contents[path]), f"wrong bytes of {path}"
        if data is None:
            damaged.append(extent)
    store.drop(damaged)


def use(store: Store, numbers: random.Random, failures: list[str]) -> None:
    """Use the store as a run does; note what fails."""
    reader = ExtentReader([store.site.directory])
    steps: list[Callable[[], object]] = [
        lambda: check(store, reader),
        store.take_over,
        lambda: stage(store, FILES, numbers.sample(FILES.paths, 8)),
        lambda: store.evict([store.key_of(path) for path in numbers.sample(FILES.paths, 4)]),
        store.sweep,
        lambda: check(store, reader),
        lambda: [stage(store, FILES, [path]) for path in FILES.paths],
        lambda: check(store, reader),
    ]
    for step in steps:
        signal.alarm(HANGING_SECONDS)
        try:
            step()
        except OSError as error:
            failures.append(f"{type(error).__name__} {error}")
    signal.alarm(0)
    reader.close()


def process(directory: Path, seed: int, *, is_open: bool) -> Iterator[str]:
    """Stage, wait for the damage, and use the store; then once more as a later run."""
    numbers = random.Random(seed)
    store = made_store(directory, 1, capacity_bytes=CAPACITY_BYTES)
    for first in range(0, len(FILES.paths), 6):
        stage(store, FILES, FILES.paths[first : first + 6])
    if not is_open:
        store.close()
    yield ""
    failures: list[str] = []
    use(store, numbers, failures)
    failures.clear()
    store.close()
    later = made_store(directory, 2)  # a charge that is too high costs no more than space
    use(later, numbers, failures)
    n_staged = len(staged(later, FILES))
    if n_staged < len(FILES.paths) and not is_known_to_be_damaged(later):
        failures.append(f"{n_staged} files staged")
    later.close()
    yield ", ".join(failures)


def is_known_to_be_damaged(store: Store) -> bool:
    """Return whether ``overlapiter check`` would find the damage that hides files."""
    statement = "PRAGMA integrity_check(1)"
    return store._access.read(lambda cursor: cursor.execute(statement).fetchone()) != ("ok",)


def trial(seed: int) -> str:
    """Return what went wrong in a trial."""
    numbers = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="damage-"))
    is_open = numbers.random() < 0.5
    orders_fd, go_fd = os.pipe()
    answer_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(go_fd)
        try:
            steps = process(directory, seed, is_open=is_open)
            next(steps)
            os.write(write_fd, b".")
            os.read(orders_fd, 1)
            os.write(write_fd, next(steps).encode())
        except BaseException:
            os.write(write_fd, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(orders_fd)
    os.close(write_fd)
    os.read(answer_fd, 1)
    done = inflict(directory, numbers)
    os.close(go_fd)
    with open(answer_fd, "rb") as answer:
        text = answer.read().decode()
    _, status = os.waitpid(pid, 0)
    shutil.rmtree(directory)
    if os.WIFSIGNALED(status):
        text += f"signal {os.WTERMSIG(status)}"
    return text and f"trial {seed}, {'open' if is_open else 'closed'}, {done}:\n{text}"


def main() -> int:
    """Run it; return how many trials went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    n_wrong = 0
    for seed in range(options.seed, options.seed + options.trials):
        if text := trial(seed):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            n_wrong += 1
    sys.stdout.write(f"{options.trials * DAMAGES_EACH} damages, {n_wrong} trials went wrong\n")
    return n_wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
