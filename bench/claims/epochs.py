"""Epochs with room for a part of the data set: their seconds, what they miss, and a forecast.

``OverlapIterator`` reads photographs from a slow store. There are four experiments, by ``--part``;
those that are published have names of their own: ``epoch-times-fuse`` of times, ``misses-measured``
of misses, ``misses-node`` of node, ``model-times`` of model.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from textwrap import fill

import numpy as np

from bench.claims.peers import run_epochs
from bench.harness import isolated
from bench.harness.options import option
from bench.harness.tables import Columns, Rows, Wanted, median_of, rows_in, spread, table
from bench.loaders.sources import EpochOptions, prepare, run_points, spec_of
from overlapiter.clairvoyant.planner import Job, forecast
from overlapiter.order import seeded_order

MEANINGS = {
    "capacity": "OverlapIterator, the staging directory holds a part",
    "unlimited": "OverlapIterator, the staging directory holds all",
    "ideal": "unlimited, while 64 threads of one more process read what has to be missed",
}
#: What misses, and the parts of the data set that fit.
_MISSES = {
    "misses": (("measured",), (0.1, 0.25, 0.5, 0.75, 0.9)),
    "node": (("together", "apart"), (0.25, 0.5, 0.75)),
}
#: MB/s of each store whose epochs are forecast, and the parts that fit.
_STORES, _FRACTIONS = (24.0, 8.0), (0.3, 0.6, 1.0)
#: A copy takes whole blocks, and segments have a reserve: room for all is more than all.
_ALL = 1.2
#: What is forecast of a run.
_SPANS = ("epoch 1", "later epochs", "run")


class Options(EpochOptions):
    part: str = option("times", "what is measured (times)", choices=("times", *_MISSES, "model"))
    fraction: float = option(0.5, "that fits, of times")
    ranks: int = option(4, "of node")
    train_ms: float = option(0.0, "sleep after each mini-batch")

    @property
    def fixed(self) -> tuple[str, ...]:
        """Reads that are counted are not those of a store of the user's, nor is a model of it."""
        return {"times": (), "model": ("source", "mount", "mb_per_s")}.get(self.part, ("source",))


def points_of(options: Options) -> list[dict]:
    """Return what runs; ``room`` is the part of the data set that fits."""
    if options.part == "times":
        ideal = {"name": "ideal", "beside_fraction": 1 - options.fraction}
        return [{"name": "capacity", "room": options.fraction}, {"name": "unlimited"}, ideal]
    if options.part in _MISSES:
        names, fractions = _MISSES[options.part]
        return [{"name": name, "room": fraction} for fraction in fractions for name in names]
    return [{"name": "calibration", "open_seconds": 0.0, "bytes_per_second": 1e12}] + [
        {"mb_per_s": rate, "bytes_per_second": rate * 1e6, "fraction": fraction,
         "room": fraction if fraction < 1 else _ALL}
        for rate in _STORES for fraction in _FRACTIONS
    ]  # fmt: skip


def measure(options: Options) -> dict:
    points, usual = points_of(options), options.usual
    usual |= {"is_decoding": options.part == "times", "compute_seconds": options.train_ms / 1e3}
    if options.part == "node":
        base, found = prepare(options, options.examples)
        run = partial(run_epochs, spec_of(base, usual), options.ranks, 1)
        isolated.take_turns(points, options.repeats, lambda p: run(p["room"], order=p["name"]))
    else:
        found = run_points(options, points, options.examples, **usual)
    beside = {"times": None, "model": beside_forecast}.get(options.part, beside_policies)
    return {**found, **(beside(options, points) if beside else {})}


# --- the seconds of each epoch --------------------------------------------------------------------


def _seconds(run: dict) -> list[float]:
    return [epoch["seconds"] for epoch in run["epochs"]]


#: What the later epochs of the limits take, of those of ``capacity``.
TARGETS: tuple[Wanted, ...] = tuple(
    (f"{limit} / capacity, epoch 2 and later", "", wanted, (limit, "capacity"),
     lambda other, run: sum(_seconds(other)[1:]) / sum(_seconds(run)[1:]))
    for limit, wanted in (("ideal", 0.85), ("unlimited", None))
)  # fmt: skip


def _epochs_of(result: dict) -> list[dict]:
    """Return a point for each epoch of each point, of the same name."""
    return [
        {"name": isolated.name_of(point), "epoch": number, "runs": runs}
        for point in result["points"]
        for number, runs in enumerate(zip(*(r["epochs"] for r in point["runs"]), strict=True), 1)
    ]


_EPOCHS = {
    "loader": "{name}", "epoch": "{epoch}", "seconds": "{seconds:.2f}",
    "[min, max]": "[{seconds.min:.2f}, {seconds.max:.2f}]", "files read": "{opens:g}",
    "MB read": lambda point: f"{median_of(point, 'bytes') / 1e6:.1f}"
}  # fmt: skip

# --- what is missed, beside other policies, each example being a file of the same size ------------

#: The policies by name. Each gives an example that is read a priority: by the place of this read,
#: that of its next one, and its priority so far, if it was staged; the least one goes. ``belady``
#: is the optimum, which no policy can beat: L. A. Belady, "A study of replacement algorithms for a
#: virtual-storage computer", IBM Systems Journal 5 (1966). What is read need not be kept. ``lru``
#: and ``fifo`` evict what was read, or staged, the longest time ago.
POLICIES: dict[str, Callable[[int, int, int], int]] = {
    "belady": lambda _place, next_use, _before: -next_use,
    "lru": lambda place, _next_use, _before: place,
    "fifo": lambda _place, _next_use, before: before,
}
#: The names of what is compared, in tables and figures.
_NAMES = {
    "measured": "**OverlapIterator**", "together": "**ranks together**", "apart": "ranks apart",
    "belady": "optimum (Belady)", "fifo": "FIFO", "lru": "LRU"
}  # fmt: skip


def missed(policy: str, reads: Sequence[int], room: int) -> list[bool]:
    """Return for each read of an example whether it misses, with room for so many of them."""
    next_uses, later = [], {}
    for place in reversed(range(len(reads))):
        next_uses.append(later.get(reads[place], len(reads)))
        later[reads[place]] = place
    found, staged = [], {}  # of these the priority
    least: list[tuple[int, int]] = []  # the same as a heap, with entries that are outdated
    for place, example in enumerate(reads):
        found.append(example not in staged)
        staged[example] = POLICIES[policy](place, next_uses.pop(), staged.get(example, place))
        heapq.heappush(least, (staged[example], example))
        while len(staged) > room:
            priority, candidate = heapq.heappop(least)
            if staged.get(candidate) == priority:
                del staged[candidate]
    return found


def beside_policies(options: Options, points: list[dict]) -> dict:
    """Return points with the shares of reads that miss in each epoch: measured, and of policies."""
    orders = [seeded_order(options.seed, e, options.examples) for e in range(options.epochs)]
    reads, shares = np.concatenate(orders).tolist(), {}
    for point in points:
        epochs = [run.get("reads") or [e["opens"] for e in run["epochs"]] for run in point["runs"]]
        means = np.mean(epochs, axis=0) / options.examples
        shares.setdefault(point["room"], {})[point["name"]] = means.round(6).tolist()
    for fraction, each in shares.items():
        for policy in POLICIES if options.part == "misses" else ["belady"]:
            found = missed(policy, reads, int(fraction * options.examples))
            means = np.reshape(found, (options.epochs, -1)).mean(axis=1)
            each[policy] = means.round(6).tolist()
    return {"points": [{"fraction": f, "missed_by_epoch": each} for f, each in shares.items()]}


def later_share(point: dict, policy: str) -> float:
    """Return the share of reads of the second and later epochs that miss."""
    return np.mean(point["missed_by_epoch"][policy][1:])


def miss_rows(result: dict) -> list[list[str]]:
    """Return a row for each policy: the misses of epoch 2 and later, in percent."""
    points = result["points"]
    lines = [["part", *(f"{100 * point['fraction']:g} %" for point in points)]]
    for name, meaning in _NAMES.items():
        if name in points[0]["missed_by_epoch"]:
            lines.append([meaning, *(f"{100 * later_share(point, name):.1f}" for point in points)])
    return lines


# --- the planner's model against the world --------------------------------------------------------


def beside_forecast(options: Options, points: list[dict]) -> dict:
    """Return the points but for the calibration, each with forecasts beside its ``seconds``."""
    calibration, *points = points
    mean_seconds = np.median([np.mean(_seconds(run)[1:]) for run in calibration["runs"]])
    start_seconds = median_of(calibration, "first_batch_seconds")
    size = median_of(calibration, "store_bytes")  # each file once
    for point in points:
        rate = point["bytes_per_second"]
        said = forecast(Job(
            n_examples=options.examples, dataset_bytes=size, n_epochs=options.epochs, n_nodes=1,
            ranks_per_node=1, ram_bytes=0, disk_bytes=point["fraction"] * size * 1.001,
            examples_per_second=options.examples / mean_seconds,
            store_rate=rate, store_limit=rate, network_rate=1e12,
            disk_rate=1e12,  # in the page cache, and part of the calibration
        ))  # fmt: skip
        seconds = [_seconds(run) for run in point["runs"]]
        first = said.first.seconds + start_seconds, [each[0] for each in seconds]
        later = said.later.seconds, [np.mean(each[1:]) for each in seconds]
        whole = said.run_seconds + start_seconds, [sum(each) for each in seconds]
        point["seconds"] = {
            name: {"forecast": told, "measured": spread(took), "error": told / np.median(took) - 1}
            for name, (told, took) in zip(_SPANS, (first, later, whole), strict=True)
        }
    store = f"emulated stores: {options.open_ms:g} ms per open"
    facts = {"later_seconds": mean_seconds, "start_seconds": start_seconds, "store": store}
    return {**facts, "points": points, "calibration": calibration["runs"]}


def _cell(name: str, point: dict) -> str:
    found = point["seconds"][name]
    times = f"{found['forecast']:.2f} / {found['measured']['median']:.2f}"
    return f"{times} ({found['error']:+.0%})"


_FORECASTS = {"store": "{mb_per_s:g} MB/s", "room for": "{fraction:.0%}"} | {
    f"{name}: forecast / measured, s": partial(_cell, name) for name in _SPANS
}


def error_rows(result: dict) -> list[list[str]]:
    errors = [abs(each["error"]) for p in result["points"] for each in p["seconds"].values()]
    cells = [f"{100 * error:.1f} %" for error in (np.mean(errors), max(errors))]
    return [["mean error", "largest error"], cells]


def _where(key: str, kind: Columns | Callable[[dict], Rows]) -> Callable[[dict], Rows]:
    """Return what makes a table if the points of a result have a key, and else none."""
    return lambda result: rows_in(result, kind) if key in result["points"][0] else [[]]


TABLES = {
    "epochs": _where("name", lambda result: table(_epochs_of(result), _EPOCHS)),
    "misses": _where("missed_by_epoch", miss_rows),
    "model": _where("mb_per_s", _FORECASTS),
    "errors": _where("mb_per_s", error_rows),
}


def marks(result: dict) -> list[tuple]:
    if "missed_by_epoch" in result["points"][0]:
        return [
            ("% of reads that miss after epoch 1, by room for % of the data", meaning.strip("*"),
             100 * point["fraction"], [100 * later_share(point, name)])
            for name, meaning in _NAMES.items()
            for point in result["points"] if name in point["missed_by_epoch"]
        ]  # fmt: skip
    fraction = result["options"].get("fraction", 1.0)  # a forecast has several
    title = f"Seconds of an epoch, the first one with the start; a part: {fraction:.0%}"
    return [
        (title, fill(MEANINGS[each["name"]], 44), f"epoch {each['epoch']}",
         [epoch["seconds"] for epoch in each["runs"]])
        for each in _epochs_of(result) if each["name"]
    ]  # fmt: skip


AXES = {"ylim": (0, None)}
