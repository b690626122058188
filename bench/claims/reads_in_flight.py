"""Reads in flight that tune themselves, beside fixed numbers of them.

Files of 20 kB are staged from an emulated slow store and read, not decoded, so that the store and
the prefetchers are what is measured. Every run is a process of its own, stages to a directory of
its own, and is timed for some seconds; the runs of all settings are interleaved::

    python -m bench reads-in-flight                  # a quarter of an hour

Reported are files per second in the second half of a run, when a number that tunes itself has been
found; the time from the first mini-batch until 90 % of that was reached; and, from a second sweep,
what the number of prefetcher processes does, with the CPU time that staging one file takes.
"""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench.harness.claim import Claim
from bench.harness.options import Options, option
from bench.harness.text import aligned, spread
from bench.harness.turns import take_turns
from bench.loaders.run import run_in_new_process
from bench.loaders.sources import fresh
from bench.loaders.spec import RunSpec

SELF_TUNED = "self-tuned"
_FILE_BYTES = 20_000
_CONTENTS = 500  # different ones; the other files are links to them
_BATCH_SIZE = 32
_WINDOW_SECONDS = 0.5


@dataclass
class ReadsOptions(Options):
    """What is run."""

    open_ms: list[int] = option([1, 10, 50], "latencies of the emulated store")
    mb_per_s: float = option(100.0, "emulated bandwidth")
    reads: list[int] = option([16, 64, 256], "the fixed numbers")
    prefetchers: list[int] = option([1, 2, 4], "numbers of prefetchers")
    files: int = option(40_000, "files to stage, at most")
    seconds: float = option(6.0, "length of a run")
    # Not ext4: it avoids the inodes of files removed in the last minute, and looking past thousands
    # of them slows down every create of the next run.
    local: Path = option(Path("/dev/shm"), "folder for files and staging (/dev/shm)", type=Path)


def make_files(root: Path, n_files: int) -> Path:
    """Make the files and their list; return the list."""
    random, names = np.random.default_rng(0), []
    for number in range(n_files):
        names.append(f"{number // 1000}/{number}")
        path = root / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < _CONTENTS:
            path.write_bytes(random.bytes(_FILE_BYTES))
            os.utime(path, (1e9, 1e9))
        else:
            os.link(root / names[number % _CONTENTS], path)
    pairs = root.with_suffix(".txt")
    pairs.write_text("".join(f"{name} 0\n" for name in names))
    return pairs


def points_of(options: ReadsOptions) -> list[dict]:
    """Return the settings, in the order in which they run."""
    settings = [(reads, None) for reads in (None, *options.reads)]
    more = [(None, number) for number in options.prefetchers]
    names = ("open_ms", "reads_in_flight", "n_prefetchers")
    triples = [(ms, *pair) for each in (settings, more) for ms in options.open_ms for pair in each]
    return [dict(zip(names, triple, strict=True)) for triple in triples]


def measure(options: ReadsOptions, scratch: Path) -> dict:
    """Do all runs."""
    root = scratch / "source"
    pairs = str(make_files(root, options.files))
    points = points_of(options)

    def run(point: dict) -> dict:
        staging = str(scratch / "staged")
        spec = RunSpec(
            "overlap", pairs, options.files, str(root), staging, is_decoding=False,
            n_batches=options.files // _BATCH_SIZE, batch_size=_BATCH_SIZE, seconds=options.seconds,
            reads_in_flight=point["reads_in_flight"], n_prefetchers=point["n_prefetchers"],
            open_seconds=point["open_ms"] / 1e3, bytes_per_second=options.mb_per_s * 1e6,
        )  # fmt: skip
        spec = fresh(spec)
        found = run_in_new_process(spec)
        shutil.rmtree(spec.staging)
        n_staged = found["statistics"]["files_staged"]
        cpu_seconds = found["cpu"]["prefetcher"]["seconds"]
        return {
            "taken_at": [round(float(s), 4) for s in itertools.accumulate(found["waits_seconds"])],
            "reads": found["reads_in_flight"],
            "files_staged": n_staged,
            "n_prefetchers": found["statistics"]["n_prefetchers"],
            "cpu_us_per_file": cpu_seconds / max(1, n_staged) * 1e6,
        }

    take_turns(points, options.repeats, run)
    for point in points:
        point["summary"] = summarize(point["runs"])
    store = f"emulated store, {options.mb_per_s:g} MB/s"
    data = f"files of {_FILE_BYTES / 1e3:g} kB, read but not decoded"
    return {"store": store, "data": data, "page_cache": "warm", "points": points}


def summarize(runs: list[dict]) -> dict[str, object]:
    """Return what the runs of one setting say."""
    facts = [_facts(run) for run in runs]
    summary = {name: spread(fact[name] for fact in facts) for name in facts[0]}
    summary["cpu_us_per_file"] = spread(run["cpu_us_per_file"] for run in runs)
    return summary


def _facts(run: dict) -> dict[str, float]:
    taken_at = np.array(run["taken_at"])
    middle = np.searchsorted(taken_at, (taken_at[0] + taken_at[-1]) / 2)
    rate = (len(taken_at) - 1 - middle) * _BATCH_SIZE / (taken_at[-1] - taken_at[middle])
    # When, for the first time, half a second began that had nine tenths of this.
    ends = np.searchsorted(taken_at, taken_at + _WINDOW_SECONDS, side="right")
    rates = (ends - np.arange(len(taken_at))) * _BATCH_SIZE / _WINDOW_SECONDS
    reached = taken_at[np.argmax(rates >= 0.9 * rate)]
    return {
        "files_per_second": float(rate),
        "seconds_to_90_percent": float(reached - taken_at[0]),
        "first_batch_seconds": float(taken_at[0]),
        "reads": median(run["reads"][middle:]),
    }


# --- tables and figure ------------------------------------------------------------------------


def show(result: dict) -> str:
    """Return what is printed."""
    points = result["points"]
    rows = [["ms/open", "prefetch.", "reads", "files/s", "of best", "s to 90 %", "first", "µs CPU"]]
    for point in points:
        found = {name: value["median"] for name, value in point["summary"].items()}
        reads = point["reads_in_flight"]
        row = [f"{point['open_ms']:g}", str(point["runs"][0]["n_prefetchers"])]
        row.append(str(reads) if reads else f"{SELF_TUNED} ({found['reads']:.0f})")
        row.append(f"{found['files_per_second']:.0f}")
        row.append("" if point["n_prefetchers"] else f"{of_best(point, points):.2f}")
        row += [f"{found[name]:.2f}" for name in ("seconds_to_90_percent", "first_batch_seconds")]
        rows.append([*row, f"{found['cpu_us_per_file']:.0f}"])
    return aligned(rows)


def _rate(point: dict) -> float:
    return point["summary"]["files_per_second"]["median"]


def of_best(point: dict, points: list[dict]) -> float:
    """Return the throughput of a point as a share of that of the best fixed number beside it."""
    same = [rival for rival in points if rival["open_ms"] == point["open_ms"]]
    rivals = [_rate(rival) for rival in same if rival["reads_in_flight"]]
    return _rate(point) / max(rivals) if rivals else float("nan")


def rate_rows(result: dict) -> list[list[str]]:
    """Return files per second: a row for each latency, a column for each number of reads."""
    points = [point for point in result["points"] if not point["n_prefetchers"]]
    fixed = sorted({point["reads_in_flight"] for point in points} - {None})
    rates = {(point["open_ms"], point["reads_in_flight"]): _rate(point) for point in points}
    rows = [["files per second", *map(str, fixed), SELF_TUNED]]
    for open_ms in sorted({point["open_ms"] for point in points}):
        cells = [f"{rates[open_ms, reads]:,.0f}" for reads in (*fixed, None)]
        rows.append([f"{open_ms:g} ms per open", *cells])
    return rows


def draw_all(result: dict, stem: Path) -> list[Path]:
    """Draw for each latency the rates, and how many reads the first self-tuned run allowed."""
    from bench.harness.figures import BLUE, RED, errors, plt, save

    points = [point for point in result["points"] if not point["n_prefetchers"]]
    latencies = sorted({point["open_ms"] for point in points})
    shape = {"sharex": "row", "sharey": "row", "squeeze": False, "figsize": (9.0, 5.2)}
    figure, grid = plt.subplots(2, len(latencies), **shape)
    for (above, below), open_ms in zip(grid.T, latencies, strict=True):
        found = [point for point in points if point["open_ms"] == open_ms]
        fixed = sorted(
            (p for p in found if p["reads_in_flight"]), key=lambda p: p["reads_in_flight"]
        )
        middle, spreads = errors([point["summary"]["files_per_second"] for point in fixed])
        counts = [point["reads_in_flight"] for point in fixed]
        bars = {"fmt": "o-", "capsize": 3, "label": "fixed number"}
        above.errorbar(counts, middle, spreads, color=BLUE, **bars)
        (tuned,) = (point for point in found if not point["reads_in_flight"])
        rate, run = tuned["summary"]["files_per_second"], tuned["runs"][0]
        above.axhline(rate["median"], color=RED, label=SELF_TUNED)
        above.axhspan(rate["min"], rate["max"], color=RED, alpha=0.15, linewidth=0)
        above.set_xscale("log", base=2)
        above.set_xticks(counts, [str(count) for count in counts])
        above.set_xlabel("reads in flight")
        above.set_title(f"{open_ms:g} ms per open", loc="left", fontsize=10)
        below.step(run["taken_at"], run["reads"], where="post", color=RED)
        below.set_yscale("log", base=2)
        below.set_yticks([4, 16, 64, 256], ["4", "16", "64", "256"])
        below.set_ylim(3, 300)
        below.set_xlabel("seconds")
    grid[0, 0].set_ylabel("files per second,\nsecond half of the run")
    grid[0, 0].set_ylim(bottom=0)
    grid[0, 0].legend(loc="lower right", fontsize=8)
    grid[1, 0].set_ylabel("reads in flight allowed,\nself-tuned")
    options = result["options"]
    lines = [
        f"{result['store']}; {result['data']}; staged to {result['staging_filesystem']}",
        f"load average {result['load_average']:.0f} before the start; median, minimum and maximum "
        f"of {options['repeats']} runs of {options['seconds']:g} s",
    ]
    return [save(figure, stem.with_suffix(".png"), result, *lines, space_inches=0.5)]


CLAIM = Claim(
    __doc__,
    ReadsOptions,
    measure,
    show,
    quick={"open_ms": [1], "reads": [8], "prefetchers": [1], "files": 640, "repeats": 1},
    tables={"rates": rate_rows},
    figures=__name__,
)
