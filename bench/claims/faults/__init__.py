"""Workers that are killed while the trainer takes mini-batches: does it hang, is every byte right?

A trainer takes mini-batches from ``OverlapIterator``, without and with staging, while another
process hits its file readers, prefetchers and, more rarely, its supervisor with SIGKILL, SIGSEGV
or SIGSTOP at seeded random moments, sometimes several of them at once. Every mini-batch is then
compared with that of an undisturbed run by one reader without staging: all bytes, and the
iterator's epoch and position::

    python -m bench faults

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

from typing import TYPE_CHECKING

from bench.claims.faults import tables
from bench.claims.faults.data import make_files
from bench.harness import isolated
from bench.harness.claim import Claim
from bench.harness.turns import progress_bar

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

CONFIGURATIONS = ("unstaged", "staged")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is done to whom."""
    add = parser.add_argument
    add("--kills", type=int, default=200, help="signals, all configurations (%(default)s)")
    add("--pause-ms", type=float, default=150.0, help="mean between volleys (%(default)s)")
    add("--compute-ms", type=float, default=5.0, help="of the trainer's step (%(default)s)")
    add("--calm-batches", type=int, default=250, help="before the first signal (%(default)s)")
    add("--hang-seconds", type=float, default=60.0, help="without any progress (%(default)s)")
    add("--configurations", nargs="+", choices=CONFIGURATIONS, default=[*CONFIGURATIONS])
    parser.set_defaults(repeats=5)  # programs of each ending


def measure(options: argparse.Namespace, scratch: Path) -> dict:
    """Do all runs."""
    from bench.claims.faults import endings

    n_endings = options.repeats * len(endings.LIMIT_SECONDS) * len(endings.WORKERS)
    make_files(scratch / "source")
    with progress_bar(len(options.configurations) + 1 + n_endings, "run") as progress:
        points = _soak(options, scratch, progress.update)
        found = endings.measure_all(scratch / "source", options.repeats, progress.update)
    return {"points": points, "endings": found}


def _soak(options: argparse.Namespace, scratch: Path, update: Callable[[], object]) -> list[dict]:
    """Do the runs under fire and the undisturbed one, and compare them."""
    names = ("seed", "compute_ms", "pause_ms", "calm_batches", "hang_seconds")
    common = {name: getattr(options, name) for name in names}
    common |= {"source": str(scratch / "source"), "staging": None}
    points = []
    for position, name in enumerate(options.configurations):
        # They add up to all.
        n_kills = (options.kills + position) // len(options.configurations)
        staging = str(scratch / "staging") if name == "staged" else None
        points.append({"configuration": name})
        request = {**common, "n_readers": 3, "kills": n_kills, "staging": staging}
        _run(points[-1], request, scratch / name)
        update()
    done = [point["run"] for point in points if "run" in point]
    n_batches = max((len(run["digests"]) for run in done), default=0)
    reference: dict = {}
    request = {**common, "n_readers": 1, "n_batches": n_batches, "compute_ms": 0}
    _run(reference, request, scratch / "reference")
    update()
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
    from bench.claims.faults import soak

    folder.mkdir()
    try:
        point["run"] = isolated.call(soak.measure, {**request, "folder": str(folder)})
    except isolated.RunFailedError as error:
        point["failure"] = str(error)


def differences(run: dict, reference: dict) -> list[int]:
    """Return the positions of the mini-batches or states in which a run differs."""
    return [
        position
        for position in range(len(run["digests"]))
        if any(run[name][position] != reference[name][position] for name in ("digests", "states"))
    ]


CLAIM = Claim(
    __doc__,
    add_options,
    measure,
    tables.show,
    quick={
        "kills": 6, "configurations": ["staged"], "pause_ms": 60.0, "calm_batches": 60,
        "compute_ms": 1.0, "repeats": 0,
    },
    tables={"hits": tables.hit_rows, "endings": tables.ending_rows},
    figures="bench.claims.faults.figures",
    faults=tables.faults,
)  # fmt: skip
