"""The first epochs when the staging directory holds half of the data set: the time of each.

Compared on the slow store, interleaved: ``OverlapIterator`` with a staging directory that holds a
part of the photographs, with one that holds all, and ``MultiprocessIterator``::

    python -m bench.epoch_times
    python -m bench.epoch_times --mount fuse --examples 4000 --loaders capacity,unlimited,ideal

It writes ``bench/results/epoch-times.json``; ``bench.epoch_figures`` draws it.

What the later epochs would take if misses cost nothing, ``ideal``, is measured, too: everything is
staged, and in each epoch after the first one more process reads from the store, with 64 threads,
as many files as have to be missed at the least, and forgets them; the epoch ends when both have
ended. So what is missing to it is the cost of copying, of the index and of evicting, and reads of
the store that are not overlapped. ``unlimited`` does not even read them.
"""

from __future__ import annotations

import argparse
import os
from statistics import median

from bench import isolated
from bench.epoch_options import parse, parser_for, request_for, scratch, store_label, write
from bench.progress import progress_bar
from bench.summary import aligned, spread

NAME = "epoch-times"
MEANINGS = {
    "capacity": "OverlapIterator, the staging directory holds a part",
    "unlimited": "OverlapIterator, the staging directory holds all",
    "ideal": "unlimited, while 64 threads of one more process read what has to be missed",
    "multiprocess": "MultiprocessIterator, slow store",
}
#: Loaders beside whose later epochs those of ``capacity`` are set.
_LIMITS = ("ideal", "unlimited")


def summarize(runs: list[dict]) -> dict:
    """Return for each epoch the spread of its seconds and the median of what it read."""
    by_epoch = zip(*(run["epoch_seconds"] for run in runs), strict=True)
    return {
        "epoch_seconds": [spread(seconds) for seconds in by_epoch],
        **{
            name: [median(numbers) for numbers in zip(*(run[name] for run in runs), strict=True)]
            for name in ("store_opens", "store_bytes")
        },
    }


def table(points: list[dict]) -> str:
    """Return a row for each loader and epoch."""
    rows = [["loader", "epoch", "seconds", "[min, max]", "files read", "MB read"]]
    for point in points:
        found = point["summary"]
        columns = zip(*found.values(), strict=True)
        for epoch, (seconds, opens, n_bytes) in enumerate(columns, 1):
            extremes = f"[{seconds['min']:.2f}, {seconds['max']:.2f}]"
            numbers = [f"{seconds['median']:.2f}", extremes, f"{opens:g}", f"{n_bytes / 1e6:.1f}"]
            rows.append([point["loader"], str(epoch), *numbers])
    meanings = "\n".join(f"{point['loader']}: {MEANINGS[point['loader']]}" for point in points)
    return f"{meanings}\n\n{aligned(rows)}\n"


def later_shares(points: list[dict], limit: str) -> list[float]:
    """Return for each repeat what the later epochs of ``limit`` take, of those of ``capacity``."""
    runs = {point["loader"]: point["runs"] for point in points}
    if not {"capacity", limit} <= runs.keys():
        return []
    pairs = zip(runs[limit], runs["capacity"], strict=True)
    return [sum(a["epoch_seconds"][1:]) / sum(b["epoch_seconds"][1:]) for a, b in pairs]


def _requests(options: argparse.Namespace, local: str) -> dict[str, dict]:
    whole = request_for(options, "overlap", None, local, is_decoding=True)
    requests = {
        "capacity": {**whole, "fraction": options.fraction},
        "unlimited": whole,
        "ideal": {**whole, "beside_fraction": 1 - options.fraction},
        "multiprocess": {**whole, "loader": "multiprocess"},
    }
    return {loader: requests[loader] for loader in options.loaders}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = parser_for(__doc__, NAME, examples=1600)
    add = parser.add_argument
    add("--fraction", type=float, default=0.5, help="that fits (%(default)s)")
    add("--repeats", type=int, default=3, help="runs of each (%(default)s)")
    add("--loaders", type=_loaders, default=list(MEANINGS), help="some of them (all)")
    options = parse(parser, arguments)
    points = [{"loader": loader, "runs": []} for loader in options.loaders]
    n_runs = len(points) * options.repeats
    with scratch(options) as local, progress_bar(n_runs, "run") as progress:
        requests = _requests(options, local)
        for repeat in range(options.repeats):
            # There and back, so that a drift of the machine's speed favours nobody.
            for point in points[:: (-1) ** repeat]:
                os.sync()  # what the run before wrote is not to slow down this one
                point["runs"].append(isolated.call("bench.epoch_runs", requests[point["loader"]]))
                progress.update()
    for point in points:
        point["summary"] = summarize(point["runs"])
    shares = {limit: later_shares(points, limit) for limit in _LIMITS}
    label = store_label(options)
    write(options, NAME, store=label, points=points, later_shares=shares)
    print(table(points))
    for limit, values in shares.items():
        if values:
            print(f"epoch 2 and later: {limit} / capacity = {median(values):.2f} of the speed")


def _loaders(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(MEANINGS)):
        raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {', '.join(MEANINGS)}")
    return names


if __name__ == "__main__":
    main()
