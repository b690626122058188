"""Workers that are killed while the trainer takes mini-batches: does it hang, is every byte right?

A trainer takes mini-batches from ``OverlapIterator``, without and with staging, while another
process hits its file readers, prefetchers and, more rarely, its supervisor with SIGKILL, SIGSEGV
or SIGSTOP at seeded random moments, sometimes several of them at once. Every mini-batch is then
compared with that of an undisturbed run by one reader without staging: all bytes, and the
iterator's epoch and position::

    python -m bench.faults

For each signal, ``notice_seconds`` is the time from the signal until a new process was seen in the
victim's place by looking about every millisecond, and ``recover_seconds`` is the longest of the
calls of ``next()`` that were under way between these two moments, or among the three calls after
them: how long the trainer had to wait because of it, at the most. A stopped process is replaced by
design when it is seen stopped at two looks in a row, a second apart.

Then programs end, by ``finalize``, Ctrl-C or ``kill -9``, with idle, busy and stuck workers, and
it is measured how long their children live on. The exit status is 1 if a byte is wrong, something
is left over, or a run does not come to its end; a limit of time that is missed is marked so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench import isolated
from bench.machine import machine_facts
from bench.progress import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm

CONFIGURATIONS = ("unstaged", "staged")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parse(arguments)
    from bench import fault_endings, fault_tables
    from bench.fault_data import make_files

    n_runs = len(options.configurations) + 1
    n_runs += options.repeats * len(fault_endings.LIMIT_SECONDS) * len(fault_endings.WORKERS)
    with (
        tempfile.TemporaryDirectory(prefix="bench-faults-") as folder,
        progress_bar(n_runs, "run") as progress,
    ):
        make_files(Path(folder, "source"))
        points = _soak(options, Path(folder), progress)
        endings = fault_endings.measure_all(Path(folder, "source"), options.repeats, progress)
    result = {
        "benchmark": "faults",
        "machine": machine_facts(),
        "options": {key: value for key, value in vars(options).items() if key != "out"},
        "points": points,
        "endings": endings,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(fault_tables.tables(result))
    return bool(fault_tables.faults(result))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kills", type=int, default=200, help="signals, all configurations (%(default)s)")
    add("--seed", type=int, default=0, help="of mini-batches and hits (%(default)s)")
    add("--pause-ms", type=float, default=150.0, help="mean between volleys (%(default)s)")
    add("--compute-ms", type=float, default=5.0, help="of the trainer's step (%(default)s)")
    add("--calm-batches", type=int, default=250, help="before the first signal (%(default)s)")
    add("--hang-seconds", type=float, default=60.0, help="without any progress (%(default)s)")
    add("--repeats", type=int, default=5, help="programs of each ending (%(default)s)")
    add("--configurations", nargs="+", choices=CONFIGURATIONS, default=[*CONFIGURATIONS])
    add("--out", type=Path, default=isolated.CHECKOUT / "bench/results/faults.json")
    return parser.parse_args(arguments)


def _soak(options: argparse.Namespace, folder: Path, progress: tqdm) -> list[dict]:
    """Do the runs under fire and the undisturbed one, and compare them."""
    names = ("seed", "compute_ms", "pause_ms", "calm_batches", "hang_seconds")
    common = {name: getattr(options, name) for name in names}
    common["source"] = str(folder / "source")
    n_configurations = len(options.configurations)
    points = []
    for position, configuration in enumerate(options.configurations):
        n_kills = (options.kills + position) // n_configurations  # they add up to all
        points.append({"configuration": configuration})
        request = {**common, "n_readers": 3, "kills": n_kills, "staging": None}
        if configuration == "staged":
            request["staging"] = str(folder / "staging")
        _run(points[-1], request, folder / configuration)
        progress.update()
    done = [point["run"] for point in points if "run" in point]
    n_batches = max((len(run["digests"]) for run in done), default=0)
    reference: dict = {}
    request = {**common, "n_readers": 1, "n_batches": n_batches, "compute_ms": 0, "staging": None}
    _run(reference, request, folder / "reference")
    progress.update()
    for point in points:
        if "failure" in reference:
            point["failure"] = f"the undisturbed run: {reference['failure']}"
        elif "run" in point:
            point["wrong"] = differences(point["run"], reference["run"])
            for name in ("digests", "states"):  # too long to keep
                del point["run"][name]
    return points


def _run(point: dict, request: dict, folder: Path) -> None:
    """Do one run, and note what came of it."""
    folder.mkdir()
    try:
        point["run"] = isolated.call("bench.faults", {**request, "folder": str(folder)})
    except isolated.RunFailedError as error:
        point["failure"] = str(error)


def differences(run: dict, reference: dict) -> list[int]:
    """Return the positions of the mini-batches or states in which a run differs."""
    return [
        position
        for position in range(len(run["digests"]))
        if any(run[name][position] != reference[name][position] for name in ("digests", "states"))
    ]


if __name__ == "__main__":
    if isolated.is_child():
        from bench import fault_soak

        isolated.serve(fault_soak.measure)
    else:
        sys.exit(main())
