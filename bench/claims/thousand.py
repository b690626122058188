"""The 1,000-mini-batch benchmark: every loader builds the same mini-batches from a slow store.

1,000 mini-batches of 32 images of 256x256 pixels are 32,000 different files, so no read is served
by an earlier one. Fewer are built where a rate is low or steady: the table says how many.

    python -m bench                             # a first look: fewer mini-batches, a minute
    python -m bench thousand --whole            # one point of the experiment, some 6 minutes
    python -m bench thousand --whole --sweep    # over 1 to 16 processes, an hour or so
    python -m bench --source /lustre/imagenet --pairs /lustre/imagenet/pairs.txt
"""

import os
from textwrap import fill

from bench.harness.machine import is_installed
from bench.harness.options import OptionsError, option, require
from bench.harness.tables import median_of
from bench.loaders import report
from bench.loaders.sources import MountOptions, run_points
from bench.loaders.spec import LOADERS, package_of

_SWEPT = [1, 2, 4, 8, 12, 16]
_SWEPT_READS = 64
_SWEEP = {"n_prefetchers": 12, "n_readers": 2}  # while the other number varies
_LOADERS = ["overlap", "slow", "fast", "copy", "floor", "overlap-staged"]
_WITHOUT_CHAINER = ["overlap-torch", "torch", "torch-local", "floor", "overlap-torch-staged"]
#: Mini-batches of ours, of slow and torch, of all others, and repeats.
_FIRST_LOOK = {"batches": 120, "slow_batches": 20, "steady_batches": 50, "repeats": 2}
_WHOLE = {"batches": 1000, "slow_batches": 60, "steady_batches": 300, "repeats": 3}


class Options(MountOptions):
    whole: bool = option(False, "as published: 1,000 mini-batches, 3 repeats")
    sweep: bool = option(False, "vary prefetchers, then readers with 12 prefetchers")
    batches: int | None = option(None, "of overlap, overlap-staged (120; whole: 1000)", quick=12)
    slow_batches: int | None = option(None, "of slow and torch (20; whole: 60)", quick=4)
    steady_batches: int | None = option(None, "of all others (50; whole: 300)", quick=6)
    repeats: int | None = option(None, "interleaved runs of each (2; whole: 3)", quick=1)
    prefetchers: list[int] = option([], "prefetchers (4; sweep: 1,2,4,8,12,16)")
    readers: list[int] = option([], "file readers (2; sweep: 1,2,4,8,12,16)")
    loaders: list[str] = option([], f"of {', '.join(LOADERS)}", known=LOADERS)

    def check(self) -> None:
        usual = _WHOLE if self.whole else _FIRST_LOOK
        if not self.loaders and not is_installed("chainer"):
            require("torch")
        self.loaders = self.loaders or (_LOADERS if is_installed("chainer") else _WITHOUT_CHAINER)
        vars(self).update({k: n for k, n in usual.items() if getattr(self, k) is None})
        self.prefetchers = self.prefetchers or (_SWEPT if self.sweep else [4])
        self.readers = self.readers or (_SWEPT if self.sweep else [2])
        if not self.sweep and max(len(self.prefetchers), len(self.readers)) > 1:
            raise OptionsError("several numbers of processes need --sweep")
        if self.sweep and "overlap" not in self.loaders:
            raise OptionsError("--sweep varies overlap, which needs Chainer: give it to --loaders")
        super().check()


def points_of(options: Options) -> list[dict]:
    """Return the lines of the table in the order in which they run."""
    fixed = _SWEEP["n_readers"] if options.sweep else options.readers[0]
    # The floor as many as ours: fewer would have a larger part of their time in the start.
    steady = ("overlap", "overlap-staged", "overlap-torch", "overlap-torch-staged", "floor")
    lengths = dict.fromkeys(steady, options.batches)
    lengths |= dict.fromkeys(("slow", "torch"), options.slow_batches)
    swept = [(_SWEEP["n_prefetchers"], n) for n in options.readers if options.sweep]
    processes = {
        **{loader: [(options.prefetchers[0], fixed)] for loader in LOADERS if "overlap-" in loader},
        "overlap": [(n, fixed) for n in options.prefetchers] + swept,
        "overlap-local": [(0, fixed)],
        **{loader: [(0, n) for n in options.readers] for loader in ("slow", "fast")},
        **{loader: [(0, len(os.sched_getaffinity(0)))] for loader in ("floor", "ceiling")},
    }
    return [
        {"loader": loader, "n_prefetchers": n_prefetchers, "n_readers": n_readers,
         "n_batches": min(lengths.get(loader, options.steady_batches), options.batches)}
        for loader in options.loaders
        for n_prefetchers, n_readers in dict.fromkeys(processes.get(loader, [(0, fixed)]))
    ]  # fmt: skip


def measure(options: Options) -> dict:
    loaders = [name for name in options.loaders if name not in ("floor", "ceiling")]
    require(*(package_of(name).split(".")[0] for name in loaders))
    points = points_of(options)
    n_examples = max(point["n_batches"] for point in points) * options.batch_size
    # Where the reads are given, all prefetchers are started, also those beyond the cores.
    n_reads = _SWEPT_READS if options.sweep else None
    return run_points(options, points, n_examples, reads_in_flight=n_reads)


_VARIED = {"n_prefetchers": "prefetchers", "n_readers": "file readers"}
_RATE = "images_per_second"
#: The parts of the readers' time, as the iterator's statistics sum them up, and words for them.
PARTS = {
    "initialize": "initialize", "dequeue": "dequeue an index list", "fetch": "fetch data",
    "other": "others"
}  # fmt: skip


def seconds_of(run: dict, part: str) -> float:
    """Return the seconds of the mean file reader in a part of its time."""
    return run["statistics"][f"{part}_seconds"] / run["statistics"]["n_readers"]


def marks(result: dict) -> list[tuple]:
    """Return the rates of the loaders; of a sweep by readers, and where the time of ours went."""
    if not result["options"]["sweep"]:
        return [
            ("Images per second", "median, minimum and maximum", fill(report.meaning_of(point), 44),
             [run[_RATE] for run in point["runs"]])
            for point in sorted(result["points"], key=lambda point: median_of(point, _RATE))
        ]  # fmt: skip
    points, found = sorted(result["points"], key=lambda point: [*map(point.get, _VARIED)]), []
    for varied, fixed in (_VARIED, reversed(_VARIED)):
        title = f"Seconds of a reader by {_VARIED[varied]}; {_SWEEP[fixed]} {_VARIED[fixed]}"
        found += [
            (title, words, str(point[varied]), [seconds_of(run, part) for run in point["runs"]])
            for point in points
            if point["loader"] == "overlap" and point[fixed] == _SWEEP[fixed]
            for part, words in PARTS.items()
        ]
    return found + [
        ("Images per second by file readers", fill(report.meaning_of(point), 44),
         point["n_readers"], [run[_RATE] for run in point["runs"]])
        for point in points if point["n_prefetchers"] in (0, _SWEEP["n_prefetchers"])
    ]  # fmt: skip


NEEDS = ()  # what the loaders need
TABLES = {"loaders": report.rate_rows, **report.TABLES}
AXES = {"stacked": True}
faults = report.faults
