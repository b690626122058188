"""What evicting a file costs: microseconds of CPU.

Measured in two ways, in turns, in directories of their own::

    python -m bench.evicting
    python -m bench.evicting --local /mnt/xfs        # a folder on another disk

* ``pipeline``: photographs are staged from the local disk, once with room for all of them and once
  with room for a part. What the prefetchers use of the CPU beyond their share for staging, divided
  by the files that they evicted.
* ``store``: one process stages files through the store and evicts all of them, a part of a
  mini-batch at a time: at once (``dirty``), and after the disk has written them (``written``).
  A hole in what is not yet written costs several times as much.
"""

from __future__ import annotations

import json
import os
import tempfile
import time

from bench import isolated
from bench.epoch_options import parse, parser_for, request_for, scratch
from bench.machine import commit_facts, filesystem_of, machine_facts
from bench.progress import progress_bar
from bench.summary import aligned, spread

NAME = "evicting"
_PART_FILES = 8
_FILE_BYTES = 20_800
STATES = ("dirty", "written")


def measure(request: dict) -> dict:
    """Stage files through the store in this process and evict them.

    Args:
        request: ``local``, a folder on the disk that is measured; ``n_files``; ``state``, one of
            :data:`STATES`.

    Returns:
        ``stage_us`` and ``evict_us``, of the CPU of this process for a file, and ``charged_bytes``
        that are left in the end, of its reservation.
    """
    from bench.store_access import stage_bytes, store_in

    store = store_in(tempfile.mkdtemp(prefix="evicted-", dir=request["local"]))
    data = os.urandom(_FILE_BYTES)
    parts = [
        range(first, min(first + _PART_FILES, request["n_files"]))
        for first in range(0, request["n_files"], _PART_FILES)
    ]
    begin = time.process_time()
    keys = [stage_bytes(store, [f"{number}.jpg" for number in part], data) for part in parts]
    staged = time.process_time()
    if request["state"] == "written":
        os.sync()
    before = time.process_time()
    for part in keys:
        store.evict(part)
    evicted = time.process_time()
    charged_bytes = store.total_bytes()
    store.close()
    return {
        "stage_us": (staged - begin) / request["n_files"] * 1e6,
        "evict_us": (evicted - before) / request["n_files"] * 1e6,
        "charged_bytes": charged_bytes,
    }


def evicting_us(whole: dict, part: dict) -> float:
    """Return what evicting one file cost the prefetchers.

    Args:
        whole: A run of ``bench.epoch_runs`` with room for all files.
        part: The same with room for some of them.
    """
    staging_seconds = whole["cpu"]["prefetcher"]["seconds"] / whole["statistics"]["files_staged"]
    expected_seconds = staging_seconds * part["statistics"]["files_staged"]
    beyond_seconds = part["cpu"]["prefetcher"]["seconds"] - expected_seconds
    return beyond_seconds / part["statistics"]["files_evicted"] * 1e6


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = parser_for(__doc__, NAME, examples=8000, epochs=2)
    add = parser.add_argument
    add("--fraction", type=float, default=0.5, help="of the data that fits (%(default)s)")
    add("--repeats", type=int, default=5, help="runs of each (%(default)s)")
    add("--ways", default="pipeline,store", help="of measuring (%(default)s)")
    options = parse(parser, arguments)
    found: dict[str, list] = {}
    with scratch(options) as local:
        n_steps = options.repeats * (2 + len(STATES))
        with progress_bar(n_steps, "run") as progress:
            for _ in range(options.repeats):
                for way, runs in _measure_all(options, local).items():
                    found.setdefault(way, []).append(runs)
                progress.update(2 + len(STATES))
        disk = filesystem_of(local)
    values = _values(found)
    facts = {"benchmark": NAME, **commit_facts(), "machine": machine_facts()}
    sizes = {name: vars(options)[name] for name in ("examples", "fraction", "repeats")}
    result = {**facts, "options": sizes, "filesystem": disk, "runs": found, "us": values}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    rows = [["", "µs of CPU for a file", "[min, max]"]]
    for what, numbers in values.items():
        over = spread(numbers)
        extremes = f"[{over['min']:.1f}, {over['max']:.1f}]"
        rows.append([what, f"{over['median']:.1f}", extremes])
    print(f"{disk}\n\n{aligned(rows)}\n")


def _measure_all(options: object, local: str) -> dict[str, object]:
    """Return what each way of measuring finds, once."""
    found: dict[str, object] = {}
    if "pipeline" in options.ways:
        whole = request_for(options, "overlap", None, local, is_decoding=False)
        whole |= {"mount": "given", "n_epochs": 1}
        pair = []
        for fraction in (None, options.fraction):
            os.sync()
            request = {**whole, "fraction": fraction}
            pair.append(isolated.call("bench.epoch_runs", request))
        found["pipeline"] = pair
    if "store" in options.ways:
        for state in STATES:
            os.sync()
            request = {"local": local, "n_files": options.examples, "state": state}
            found[state] = isolated.call("bench.evicting", request)
    return found


def _values(found: dict[str, list]) -> dict[str, list[float]]:
    values = {}
    if "pipeline" in found:
        values["evicting, in the pipeline"] = [evicting_us(*pair) for pair in found["pipeline"]]
    for state in STATES:
        if state in found:
            values[f"evicting, store, {state}"] = [run["evict_us"] for run in found[state]]
    if STATES[0] in found:
        staged = [run["stage_us"] for state in STATES for run in found[state]]
        values["claiming, writing and publishing"] = staged
    return values


if __name__ == "__main__":
    if isolated.is_child():
        isolated.serve(measure)
    else:
        main()
