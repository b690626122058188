"""Looks into a staging directory, as a person cannot, and spoils what is staged there.

Each look opens the index, fetches what it wants and closes it, so that this process may start
others. None of it may be done in a process that forks meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from overlapiter.store.extents import Extent, ExtentReader, checksum_of, key_of, source_seed
from overlapiter.store.generation import (
    generation_of,
    index_path,
    make_generation,
    segments_folder,
    segments_of,
)
from overlapiter.store.segments import segment_path
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store
from overlapiter.workers.plan import StagingPlan

_TREE_BYTES = 4096
_EXTENTS = "SELECT path, key, segment, start, size, mtime, checksum FROM staged"


def query(directory: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a statement on the index in use; none as long as there is no index."""
    path = index_path(generation_of(str(directory)))
    if not os.path.exists(path):
        return []
    try:
        connection = sqlite3.connect(f"file:{path}?mode=rw", timeout=20, uri=True)
    except sqlite3.OperationalError:  # it was thrown away at this moment
        return []
    with contextlib.closing(connection), connection:
        try:
            return connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # it is being made
                return []
            raise


def staged_paths(directory: Path, source: Path | str | None = None) -> dict[str, Extent]:
    """Return where each staged file lies, by its path below the source root.

    Args:
        directory: The staging directory.
        source: Only files of this root; needed where two have files of the same name.
    """
    statement, values = _EXTENTS, []
    if source is not None:
        statement += " WHERE source IN (SELECT id FROM source WHERE root=?)"
        values.append(os.fsencode(source))
    rows = query(directory, statement, *values)
    return {os.fsdecode(path): Extent(key, 0, *numbers) for path, key, *numbers in rows}


def read_staged(directory: Path, extent: Extent) -> bytes:
    """Return the bytes of a staged file. Raises DamagedError."""
    reader = ExtentReader([str(directory)])
    try:
        if extent.is_whole:
            return Path(reader.path_of(extent)).read_bytes()
        return reader.read(extent)
    finally:
        reader.close()


def charged_bytes(directory: Path) -> int:
    """Return what the capacity is compared with; checks that it is the sum of all charges."""
    statement = (
        "SELECT (SELECT value FROM fact WHERE name='total'), "
        "(SELECT COALESCE(SUM(charged), 0) FROM segment)"
    )
    for total, charged in query(directory, statement):
        assert total == charged
        return int(total)
    return 0


def segments(directory: Path) -> list[Path]:
    """Return the files that hold the bytes."""
    with contextlib.suppress(FileNotFoundError):  # there is no generation yet
        return list(Path(segments_folder(str(directory))).iterdir())
    return []


def blocks_on_disk(directory: Path) -> int:
    """Return the bytes that all segments take on the disk."""
    n_bytes = 0
    for path in segments(directory):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            n_bytes += path.stat().st_blocks * 512
    return n_bytes


def data_on_disk(directory: Path) -> int:
    """Return the bytes that all segments take on the disk, without the trees of their pieces.

    A file of many pieces, as holes make them, has a tree of them on ext4, which counts as a block.
    """
    n_bytes = 0
    for path in segments(directory):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            n_bytes += max(0, path.stat().st_blocks * 512 - _TREE_BYTES)
    return n_bytes


def assert_accounted(directory: Path, more_bytes: int = 0) -> None:
    """Check that as much is charged as lies on the disk, where a test may have added more."""
    surplus_bytes = blocks_on_disk(directory) - charged_bytes(directory)
    # A file of many pieces has a tree of them on ext4, which counts.
    assert 0 <= surplus_bytes <= _TREE_BYTES * len(segments(directory)) + more_bytes


def being_copied(directory: Path) -> set[int]:
    """Return the keys of the files that processes have claimed, dead ones too."""
    return {key for (key,) in query(directory, "SELECT key FROM copying")}


def key_in(source: Path | str, path: Path | str) -> int:
    """Return the key of a source file, given by its absolute path."""
    return key_of(str(path), source_seed(str(source)))


@contextlib.contextmanager
def another_run(directory: Path, source: Path | str) -> Iterator[Store]:
    """Give the store to another run, which ends with the block. No process may be forked in it."""
    store = Store(Site(str(directory)), str(source), Run(secrets.randbits(62), {}))
    try:
        yield store
        store.record_end("closed", {})
    finally:
        store.close()


def evict(directory: Path, source: Path | str, names: Iterable[str]) -> None:
    """Evict files as another run does.

    Args:
        directory: The staging directory.
        source: The source root.
        names: Their paths below it.
    """
    with another_run(directory, source) as store:
        store.evict([store.key_of(os.path.join(source, name)) for name in names])


def mend(directory: Path, source: Path | str) -> None:
    """Mend what dead processes have left, as the first prefetcher of a run does."""
    with another_run(directory, source) as store:
        store.sweep()


def plan_for(directory: Path, source: Path | str) -> StagingPlan:
    """Return the plan of workers that stage in one tier."""
    return StagingPlan(
        sites=(Site(str(directory)),),
        source=str(source),
        validate="mtime",
        n_prefetchers=1,
        reads_in_flight=None,
    )


def copied(directory: Path, source: Path | str, path: Path | str) -> Extent:
    """Copy a file to a segment of its own, as to a shared one, and tell no index of it."""
    folder = segments_of(make_generation(str(directory)))
    data, key = Path(path).read_bytes(), key_in(source, path)
    number = secrets.randbits(62) + 1
    Path(segment_path(folder, number)).write_bytes(data)
    return Extent(key, 0, number, 0, len(data), 7, checksum_of(data, key, 7))


# --- damage -----------------------------------------------------------------------------------


def _segment(directory: Path, extent: Extent) -> Path:
    return Path(segment_path(segments_folder(str(directory)), extent.segment))


def _write(directory: Path, extent: Extent, change: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(FileNotFoundError), _segment(directory, extent).open("r+b") as file:
        file.seek(max(extent.start, 0))
        data = file.read(extent.size)
        file.seek(max(extent.start, 0))
        file.write(change(data))


_flips = itertools.count()


def flip(directory: Path, extent: Extent) -> None:
    """Flip a bit in the middle of a staged file, another one each time: two would cancel out."""
    middle = extent.size // 2 + next(_flips) % max(1, extent.size // 2)

    def flipped(data: bytes) -> bytes:
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    _write(directory, extent, flipped)


def zero(directory: Path, extent: Extent) -> None:
    """Overwrite a staged file with zeros."""
    _write(directory, extent, lambda data: bytes(len(data)))


def cut(directory: Path, extent: Extent) -> None:
    """Cut the segment in the middle of a staged file."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(_segment(directory, extent), max(extent.start, 0) + extent.size // 2)


def replace(directory: Path, extent: Extent) -> None:
    """Put another file of the same size in the place of the segment, of which no byte is alike."""
    path = _segment(directory, extent)
    with contextlib.suppress(FileNotFoundError):
        other = path.with_name("other")
        other.write_bytes(path.read_bytes().translate(bytes([*range(1, 256), 0])))
        other.rename(path)


def remove(directory: Path, extent: Extent) -> None:
    """Remove the segment of a staged file, and with it other files."""
    _segment(directory, extent).unlink(missing_ok=True)


#: What may befall a staged file, and others in its segment.
DAMAGE: dict[str, Callable[[Path, Extent], None]] = {
    "a bit flipped": flip,
    "zeroed": zero,
    "cut": cut,
    "replaced": replace,
    "removed": remove,
}


# --- the index --------------------------------------------------------------------------------


def flip_index(directory: Path) -> None:
    """Flip bytes all over the index."""
    _spoil_index(directory, lambda data: bytes(b ^ (n % 3 == 0) for n, b in enumerate(data)))


def cut_index(directory: Path) -> None:
    """Cut the index to a part of its first page."""
    _spoil_index(directory, lambda data: data[:1000])


def replace_index(directory: Path) -> None:
    """Put a file that is no index in its place."""
    path = Path(index_path(generation_of(str(directory))))
    other = path.with_name("other")
    other.write_bytes(b"no index" * 1000)
    other.rename(path)


def remove_index(directory: Path) -> None:
    """Remove the index alone."""
    Path(index_path(generation_of(str(directory)))).unlink(missing_ok=True)


def _spoil_index(directory: Path, change: Callable[[bytes], bytes]) -> None:
    """Write to the index in place, past SQLite."""
    path = Path(index_path(generation_of(str(directory))))
    data = change(path.read_bytes())
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


INDEX_DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip_index,
    "cut": cut_index,
    "replaced": replace_index,
    "removed": remove_index,
}


# --- other processes --------------------------------------------------------------------------

_HOLDER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
connection.execute(sys.argv[2])
connection.execute("SELECT * FROM fact").fetchone()
os.kill(os.getpid(), signal.SIGSTOP)
connection.execute("COMMIT")
"""


@contextlib.contextmanager
def stopped_in_transaction(directory: Path, begin: str = "BEGIN IMMEDIATE") -> Iterator[int]:
    """Have another process stopped inside a transaction; gives its pid, for SIGCONT.

    Args:
        directory: The staging directory.
        begin: The statement that begins it; ``"BEGIN"`` for one that reads.
    """
    path = index_path(generation_of(str(directory)))
    with subprocess.Popen([sys.executable, "-c", _HOLDER, path, begin]) as holder:
        try:
            assert os.WIFSTOPPED(os.waitpid(holder.pid, os.WUNTRACED)[1])
            yield holder.pid
        finally:
            holder.kill()


def pretend_reboot(directory: Path) -> None:
    """Have the index believe that the node was booted since the last process used it."""
    path = index_path(generation_of(str(directory)))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE fact SET value='before' WHERE name='boot'")
