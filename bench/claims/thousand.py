"""The 1,000-mini-batch benchmark: every loader builds the same mini-batches from a slow store.

1,000 mini-batches of 32 images of 256x256 pixels are 32,000 different files, so no read is served
by an earlier one. Fewer are built where a rate is low or steady: the table says how many.

    python -m bench                             # a first look: fewer mini-batches, a minute
    python -m bench thousand --whole            # one point of the experiment, some 6 minutes
    python -m bench thousand --whole --sweep    # over 1 to 16 processes, an hour or so
    python -m bench --source /lustre/imagenet --pairs /lustre/imagenet/pairs.txt
"""

from __future__ import annotations

import os
import textwrap
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from bench.harness.figures import BLUE, DARK, GREEN, GREY, ORANGE, RED, SKY, drawn, errors, line
from bench.harness.machine import is_installed
from bench.harness.options import OptionsError, option, require
from bench.harness.tables import median_of, spread_of
from bench.loaders import report
from bench.loaders.sources import MountOptions, run_points
from bench.loaders.spec import LOADERS, PARTS, package_of

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


def measure(options: Options, scratch: Path) -> dict:
    loaders = [name for name in options.loaders if name not in ("floor", "ceiling")]
    require(*(package_of(name).split(".")[0] for name in loaders))
    points = points_of(options)
    n_examples = max(point["n_batches"] for point in points) * options.batch_size
    # Where the reads are given, all prefetchers are started, also those beyond the cores.
    n_reads = _SWEPT_READS if options.sweep else None
    return run_points(options, scratch, points, n_examples, reads_in_flight=n_reads)


# --- figures ------------------------------------------------------------------------------------

_COLOURS = {
    "overlap": BLUE, "overlap-staged": SKY, "fast": GREEN, "slow": RED, "copy": ORANGE,
    "overlap-torch": BLUE, "overlap-torch-staged": SKY, "torch-local": GREEN, "torch": RED,
}  # fmt: skip
_PROCESSES = {"n_readers": "file reader processes", "n_prefetchers": "prefetcher processes"}
_RATE = "images_per_second"
_RATE_WORDS = "images per second (median, minimum and maximum)"


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw every figure for which ``result`` has data.

    Of a sweep the four parts of a file reader's time over the ``-prefetchers`` and the
    ``-readers``, and the rates of the ``-loaders`` over the readers; else of these a bar for each.
    """
    points, options = result["points"], result["options"]
    figures = {"loaders": _draw_bars}
    if options["sweep"]:
        of_prefetchers = partial(_draw_parts, varies="n_prefetchers", fixed="n_readers")
        of_readers = partial(_draw_parts, varies="n_readers", fixed="n_prefetchers")
        figures = {"prefetchers": of_prefetchers, "readers": of_readers, "loaders": _draw_lines}
    cache = "warm" if "source" in options else "cold"  # a place of the user's is not published
    lines = [
        f"{result['store']}; {result['data']}; batch size {options['batch_size']}",
        f"median of {options['repeats']} runs; page cache of the source {cache} before each run",
    ]
    paths = {stem.with_name(f"{stem.name}-{name}.png"): draw for name, draw in figures.items()}
    for path, draw in paths.items():
        with drawn(path, result, *lines, space_inches=0.5) as axes:
            draw(points, axes)
    return [*paths]


def _draw_parts(points: list[dict], axes: Axes, varies: str, fixed: str) -> None:
    """Draw stacked bars: the mean seconds per file reader, over a number of processes."""
    points = _of(points, "overlap", **{fixed: _SWEEP[fixed]})
    counts, bottom = [str(point[varies]) for point in points], np.zeros(len(points))
    for (name, label), colour in zip(PARTS.items(), (GREY, SKY, BLUE, ORANGE), strict=True):
        heights = np.array([median_of(point, "parts", name) for point in points])
        bars = axes.bar(counts, heights, 0.62, bottom, label=label, color=colour)
        bottom += heights
    axes.bar_label(bars, [f"{total:.1f}" for total in bottom], padding=3)
    axes.grid(visible=False, axis="x")
    # Room for the number above the highest bar.
    axes.set(xlabel=_PROCESSES[varies], ylim=(0, 1.08 * float(bottom.max())))
    axes.set_ylabel("mean seconds per file reader process")
    title = f"{points[0]['n_batches']} mini-batches with {_SWEEP[fixed]} {_PROCESSES[fixed]}"
    axes.set_title(title, loc="left")
    axes.legend(reverse=True, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_lines(points: list[dict], axes: Axes) -> None:
    """Draw images per second over file readers: ours, and the two extremes of the stock one."""
    for loader in ("overlap", "fast", "slow"):
        fixed = {"n_prefetchers": _SWEEP["n_prefetchers"]} if loader == "overlap" else {}
        group = _of(points, loader, **fixed)
        counts, rates = [p["n_readers"] for p in group], [spread_of(p, _RATE) for p in group]
        style = {"color": _COLOURS[loader], "label": _words_of({"loader": loader})}
        line(axes, counts, rates, fmt="o-", **style)
    for point in _of(points, "floor"):  # it has as many processes as there are cores
        axes.axhline(median_of(point, _RATE), color=DARK, linestyle="--", label=_words_of(point))
    axes.set(xlabel=_PROCESSES["n_readers"], ylim=(0, None))
    axes.set_ylabel(_RATE_WORDS.replace(" (", "\n("))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8)


def _of(points: list[dict], loader: str, **fixed: int) -> list[dict]:
    found = [p for p in points if p["loader"] == loader and fixed.items() <= p.items()]
    return sorted(found, key=itemgetter("n_prefetchers", "n_readers"))


def _words_of(point: dict) -> str:
    return textwrap.fill(report.meaning_of(point), 38)


def _draw_bars(points: list[dict], axes: Axes) -> None:
    """Draw images per second of every loader, where all have the same number of file readers."""
    points = sorted(points, key=lambda point: median_of(point, _RATE))
    middle, spread = errors([spread_of(point, _RATE) for point in points])
    colours = [_COLOURS.get(point["loader"], GREY) for point in points]
    bars = axes.barh(range(len(points)), middle, 0.62, xerr=spread, color=colours, capsize=3)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in middle], padding=4)
    axes.set_yticks(range(len(points)), [*map(_words_of, points)], fontsize=8)
    axes.grid(visible=False, axis="y")
    # Room for the number behind the longest bar, whose maximum may be far above its median.
    axes.set(xlim=(0, 1.15 * float((middle + spread[1]).max())), xlabel=_RATE_WORDS)


NEEDS = ()  # what the loaders need
TABLES = {"loaders": report.rate_rows, **report.TABLES}
faults = report.faults
