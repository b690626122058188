"""What evicting a file costs: microseconds of CPU, measured in two ways, in turns.

    python -m bench evicting
    python -m bench evicting --local /mnt/xfs        # a folder on another disk

* ``pipeline``: photographs are staged with room for all of them and with room for a part. What the
  prefetchers use beyond their share for staging, divided by the files that they evicted.
* ``store``: one process stages files through the store and evicts all of them: at once (``dirty``),
  and after the disk has written them (``written``), since a hole then costs a fraction.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path

from bench.harness.options import OptionsError, option
from bench.harness.tables import Wanted
from bench.harness.turns import call_in_turns
from bench.loaders.report import staging_us
from bench.loaders.sources import MountOptions, run_points

_PART_FILES = 8
_FILE_BYTES = 20_800
STATES = ("dirty", "written")


class Options(MountOptions):
    examples: int = option(8000, "photographs", quick=320)
    readers: int = option(2, "file reader processes")
    repeats: int = 5
    fraction: float = option(0.5, "of the data that fits")

    def check(self) -> None:
        """Refuse a slow store: the disk of the staged files is what counts."""
        super().check()
        if self.source or self.mount != "emulated":
            raise OptionsError("evicting reads from the local disk alone")


def drive(request: dict) -> dict:
    """Stage files through the store in this process and evict them.

    Returns:
        ``stage_us`` and ``evict_us``, of the CPU of this process for a file, and ``charged_bytes``
        that are left in the end, of its reservation.
    """
    from bench.harness.store_access import stage_bytes, store_in

    store = store_in(tempfile.mkdtemp(prefix="evicted-", dir=request["local"]))
    data, n_files = os.urandom(_FILE_BYTES), request["n_files"]
    names = [f"{number}.jpg" for number in range(n_files)]
    parts = [names[first : first + _PART_FILES] for first in range(0, n_files, _PART_FILES)]

    def timed(call: Callable, items: Iterable) -> tuple[list, float]:
        begin = time.process_time()
        found = [call(item) for item in items]
        return found, (time.process_time() - begin) / n_files * 1e6

    keys, stage_us = timed(lambda part: stage_bytes(store, part, data), parts)
    if request["name"] == "written":
        os.sync()
    _, evict_us = timed(store.evict, keys)
    charged_bytes = store.total_bytes()
    store.close()
    return {"stage_us": stage_us, "evict_us": evict_us, "charged_bytes": charged_bytes}


def evicting_us(whole: dict, part: dict) -> float:
    """Return what evicting a file cost the prefetchers, beside a run with room for the whole."""
    counts = part["statistics"]
    beyond_us = (staging_us(part) - staging_us(whole)) * counts["files_staged"]
    return beyond_us / counts["files_evicted"]


def measure(options: Options, scratch: Path) -> dict:
    points = [{"name": "whole"}, {"name": "part", "room": options.fraction}]
    usual = {"n_epochs": 1, "n_readers": options.readers, "order": "own", "is_decoding": False}
    usual |= {"loader": "overlap", "mount": "given"}
    found = run_points(options, scratch, points, options.examples, **usual)
    driven = [{"name": state} for state in STATES]
    call_in_turns(driven, options.repeats, drive, local=scratch, n_files=options.examples)
    return {"data": found["data"], "points": points + driven}


#: The last one only explains the others.
TARGETS: tuple[Wanted, ...] = (
    ("evicting, in the pipeline", "µs", 20, ("whole", "part"), evicting_us),
    *(
        (f"evicting, store, {state}", "µs", 20, (state,), itemgetter("evict_us"))
        for state in STATES
    ),
    ("claiming, writing and publishing, dirty", "µs", None, STATES[:1], itemgetter("stage_us")),
)
TABLES: dict = {}  # the targets are all that is shown
