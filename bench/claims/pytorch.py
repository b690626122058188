"""``overlapiter.torch.DataLoader`` beside PyTorch's own: the same mini-batches of images.

On the FUSE mount NVIDIA DALI's CPU pipeline and Meta's SPDL do the same work, where they are
installed: ``pip install nvidia-dali-cuda120 nvidia-nvimgcodec-cu12`` (1 GB), ``pip install spdl``.
"""

import time

from bench.claims import in_memory
from bench.harness import isolated
from bench.harness.machine import is_installed
from bench.harness.options import option, picked
from bench.harness.tables import Wanted, compared
from bench.loaders import report
from bench.loaders.sources import MountOptions, run_points
from bench.loaders.spec import PACKAGES

#: With 2 workers each, and with more of them some.
_OURS = (
    "overlap-torch", "overlap-torch-staged", "torch-local", "ceiling", "overlap-torch-importing"
)  # fmt: skip
_OF_MANY = _OURS[:3]
_RIVALS = (("dali", 2), ("dali", 16), ("dali-files", 2), ("spdl", 16), ("spdl", 64))
#: The trainer alone, whose examples are in memory.
_TRAINER = "overlap-torch-unlocked"
_ABSENT = "DALI and SPDL are compared on a mount alone (--mount fuse): DALI opens in C."


class Options(MountOptions):
    most_seconds = 180.0  # many times what a run takes: other loaders may hang
    batches: int = option(200, "mini-batches of ours, and of PyTorch's on the local disk", quick=8)
    slow_batches: int = option(50, "of PyTorch's on the slow store with 2 workers", quick=4)
    workers: list[int] = option([], "more of ours, and of PyTorch's on the local disk", quick=[3])
    readers: list[int] = option([2, 8, 16, 32, 64], "workers of PyTorch's", quick=[2])


def take(_request: dict) -> dict:
    """Return the seconds of ``import torch``."""
    start = time.monotonic()
    import torch  # noqa: F401  # what is timed

    return {"seconds": time.monotonic() - start}


def measure(options: Options) -> dict:
    # With more workers also more mini-batches, so that a run takes as long.
    more = [(n_workers, options.batches * n_workers // 2) for n_workers in options.workers]
    most, longest = max([(2, options.batches), *more])
    rivals, absent = [("torch", n_readers) for n_readers in options.readers], _ABSENT
    if options.mount == "fuse":
        missing = sorted({name for name, _ in _RIVALS if not is_installed(PACKAGES[name])})
        rivals += [line for line in _RIVALS if line[0] not in missing]
        absent = f"{', '.join(missing)} left out: not installed." if missing else ""
    lines = [(name, n_workers, n_batches) for n_workers, n_batches in more for name in _OF_MANY]
    for name, n_workers in rivals:
        slow = options.slow_batches if n_workers <= 2 else options.batches
        lines.append((name, n_workers, longest if n_workers > most else slow))
    points = [{"loader": name, "n_readers": 2, "n_batches": options.batches} for name in _OURS]
    points[_OURS.index("ceiling")]["n_batches"] = longest
    points += [
        {"loader": name, "n_readers": n, "n_batches": n_batches, "name": f"{name}, {n} workers"}
        for name, n, n_batches in lines
    ]
    result = run_points(options, points, longest * options.batch_size)
    imported, own = [{"name": "import"}], [{"loader": "torch-unlocked"}, {"loader": _TRAINER}]
    isolated.call_in_turns(imported, options.repeats, take)
    held = picked(in_memory.Options(batches=80), in_memory.ASKED)
    isolated.call_in_turns(own, options.repeats, in_memory.take, compute_ms=0.0, **held)
    return {**result, "targets": targets([*result["points"], *imported, *own]), "absent": absent}


def targets(points: list[dict]) -> list[dict]:
    """Compare the runs of each repeat, of those points that have run."""
    runs = {isolated.name_of(point): point["runs"] for point in points}
    stock = [name for name in runs if name.startswith("torch, ")] or [None]
    two, cold, importing = "torch, 2 workers", "overlap-torch", "overlap-torch-importing"
    most = [cold, *(name for name in runs if name.startswith(f"{cold}, "))][-1]  # workers of ours
    # The loops of the ceiling are forked from a process that has imported everything; workers that
    # start by themselves are what the first mini-batch waits for.
    wanted: list[Wanted] = [
        ("times PyTorch's, 2 workers each, cold", "", 10, [cold, two], _times),
        ("the same, a data set that imports PyTorch", "", None, [importing, two], _times),
        ("times PyTorch's best, cold", "", 1.7, [most, *stock], _times),
        ("of the ceiling, cold, all included", "", 0.85, [most, "ceiling"], _times),
        ("of the ceiling, cold, after the first", "", 0.85, [most, "ceiling"], "rate_after_first"),
        ("of the ceiling, cold, by CPU of all", "", None, [most, "ceiling"], report.less_cpu),
        ("times PyTorch's on the local disk", "", 1.8, ["overlap-torch-staged", "torch-local"],
         _times),
        ("first mini-batch beyond import torch, imported", "s", 0.5, [importing, "import"],
         lambda run, imported: run["first_batch_seconds"] - imported["seconds"]),
        ("first mini-batch, not imported", "s", 0.5, [cold], "first_batch_seconds"),
        ("import torch", "s", None, ["import"], "seconds"),
        ("CPU of PyTorch's trainer beside ours", "", 10, ["torch-unlocked", _TRAINER],
         "trainer_cpu_ms"),
        ("CPU of ours for a mini-batch", "µs", None, [_TRAINER],
         lambda ours: 1e3 * ours["trainer_cpu_ms"]),
    ]  # fmt: skip
    for size in (name.removeprefix(cold) for name in runs if name.startswith(f"{cold}, ")):
        wanted += [
            (f"times PyTorch's, cold{size} each", "", 10, [cold + size, f"torch{size}"], _times),
            (f"times PyTorch's on the local disk{size} each", "", 1.8,
             [f"overlap-torch-staged{size}", f"torch-local{size}"], _times),
        ]  # fmt: skip
    return compared(wanted, runs)


def _times(run: dict, *others: dict) -> float:
    """Return how many times as fast a run is as the best of the others, all included."""
    return run["images_per_second"] / max(other["images_per_second"] for other in others)


NEEDS = ("torch",)
TABLES = {"pytorch": report.rate_rows, **report.TABLES}
faults = report.faults
