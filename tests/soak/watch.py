"""A watcher of a staging directory: what is charged, what lies on the disk, what is opened.

It is a process of its own, since one that opens an index must not fork. It looks until its
standard input is closed, then tells what it has seen.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

from bench.harness.store_access import store_in
from overlapiter.store.extents import Extent, ExtentReader
from overlapiter.store.generation import generation_of, segments_folder
from overlapiter.store.index import IndexBusyError, IndexDamagedError
from overlapiter.store.inventory import Inventory
from tests.support.opens import Opens

_LOOK_SECONDS = 0.01
_BLOCK_BYTES = 4096
#: An inode of ext4 names this many pieces; more are in blocks of this many each, which may be half
#: empty, since they are split, and which count as blocks of the file.
_INODE_PIECES, _LEAF_PIECES = 4, 340
_TOTAL = (
    "SELECT (SELECT value FROM fact WHERE name='total'), "
    "(SELECT COALESCE(SUM(charged), 0) FROM segment)"
)


def on_disk(directory: str) -> tuple[int, int]:
    """Return the bytes that the segments take, and how many of them may be trees of pieces.

    At the worst every other block of a segment is a hole, so it has as many pieces as blocks.
    """
    taken_bytes = tree_bytes = 0
    with contextlib.suppress(FileNotFoundError):  # no generation yet
        for entry in os.scandir(segments_folder(directory)):
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                size_bytes = entry.stat().st_blocks * 512
                taken_bytes += size_bytes
                n_pieces = size_bytes // _BLOCK_BYTES
                if n_pieces > _INODE_PIECES:
                    tree_bytes += (1 + n_pieces // (_LEAF_PIECES // 2)) * _BLOCK_BYTES
    return taken_bytes, tree_bytes


class Watch:
    """What was seen of a staging directory in which ``capacity_bytes`` may lie."""

    def __init__(self, directory: str, capacity_bytes: int) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._inventory: Inventory | None = None
        self._generation = ""
        names = ("n_looks", "n_busy", "largest_total_bytes", "largest_disk_bytes")
        names += ("largest_disk_less_trees_bytes", "n_over_capacity", "n_miscounted")
        self.seen = dict.fromkeys(names, 0)
        self.generations: list[str] = []

    def look(self) -> None:
        """Take note of what is charged and what lies there."""
        seen = self.seen
        try:
            if self._generation != (generation := generation_of(self._directory)):
                self.close()
                self._inventory = Inventory(self._directory)
                self._generation = generation
                self.generations.append(os.path.basename(generation))
            ((total, charged),) = self._inventory.select(_TOTAL)
        except FileNotFoundError:  # the first job is starting
            return
        except (IndexBusyError, IndexDamagedError):  # a new generation tells of damage
            seen["n_busy"] += 1
            self._generation = ""
            return
        taken, trees = on_disk(self._directory)
        seen["n_looks"] += 1
        for name, value in (("total", total), ("disk", taken), ("disk_less_trees", taken - trees)):
            name = f"largest_{name}_bytes"
            seen[name] = max(seen[name], value)
        is_over = taken - trees > self._capacity_bytes
        if is_over:  # what is given back and taken elsewhere amid one look would count twice
            is_over = on_disk(self._directory) == (taken, trees)
        seen["n_over_capacity"] += is_over or total > self._capacity_bytes
        seen["n_miscounted"] += total != charged

    def close(self) -> None:
        """Close the index."""
        if self._inventory is not None:
            self._inventory.close()
            self._inventory = None


def watch(request: dict) -> dict:
    """Look until standard input is closed."""
    opens = Opens(request["source"])
    opens.start()
    watched = Watch(request["staging"], request["capacity_bytes"])
    os.write(1, b"watching\n")
    while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
        watched.look()
    watched.close()
    opens.end()
    counts = opens.counts.values()
    return {
        **watched.seen,
        "generations": [*dict.fromkeys(watched.generations)],
        "n_source_opens": sum(counts),
        "n_source_files": len(counts),
        "most_opens_of_a_file": max(counts, default=0),
        "n_lost_events": opens.n_lost,
    }


def settled(request: dict) -> dict:
    """Sweep, and return what then is in the directory, with each copy compared."""
    directory, source = request["staging"], request["source"]
    store = store_in(directory, source)
    store.sweep()
    store.close()
    inventory = Inventory(directory)
    counts = {
        f"n_{name}": inventory.select(f"SELECT COUNT(*) FROM {name}")[0][0]
        for name in ("copying", "going", "staged")
    }
    counts |= {**inventory.accounts()._asdict(), "tree_bytes": on_disk(directory)[1]}
    select = "SELECT path, key, segment, start, size, mtime, checksum FROM staged"
    rows = inventory.select(select)
    inventory.close()
    reader, n_wrong = ExtentReader([directory]), 0
    for path, key, *numbers in rows:
        extent = Extent(key, 0, *numbers)
        whole = Path(reader.path_of(extent)) if extent.is_whole else None
        data = whole.read_bytes() if whole else reader.read(extent)
        n_wrong += data != Path(source, os.fsdecode(path)).read_bytes()
    reader.close()
    local = Path(generation_of(directory), "local")
    n_folders = len(list(local.iterdir())) if local.exists() else 0
    return {**counts, "n_wrong_copies": n_wrong, "n_local_folders": n_folders}
