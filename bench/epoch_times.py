"""The first epochs when the staging directory holds half of the data set: the time of each.

Compared on the emulated slow store, interleaved: ``OverlapIterator`` with a staging directory that
holds a part of the photographs, with one that holds all, and ``MultiprocessIterator``::

    python -m bench.epoch_times

It writes ``bench/results/epoch-times.json``; ``bench.epoch_figures`` draws it.
"""

from __future__ import annotations

from statistics import median

from bench import isolated
from bench.epoch_options import parse, parser_for, request_for, store_label, write
from bench.progress import progress_bar
from bench.summary import aligned, spread

NAME = "epoch-times"
MEANINGS = {
    "capacity": "OverlapIterator, the staging directory holds a part",
    "unlimited": "OverlapIterator, the staging directory holds all",
    "multiprocess": "MultiprocessIterator, slow store",
}


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
    meanings = "\n".join(f"{loader}: {MEANINGS[loader]}" for loader in MEANINGS)
    return f"{meanings}\n\n{aligned(rows)}\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = parser_for(__doc__, NAME, examples=1600)
    parser.add_argument("--fraction", type=float, default=0.5, help="that fits (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (%(default)s)")
    options = parse(parser, arguments)
    requests = {
        "capacity": request_for(options, "overlap", options.fraction, is_decoding=True),
        "unlimited": request_for(options, "overlap", None, is_decoding=True),
        "multiprocess": request_for(options, "multiprocess", None, is_decoding=True),
    }
    points = [{"loader": loader, "runs": []} for loader in requests]
    with progress_bar(len(points) * options.repeats, "run") as progress:
        for point in points * options.repeats:
            point["runs"].append(isolated.call("bench.epoch_runs", requests[point["loader"]]))
            progress.update()
    for point in points:
        point["summary"] = summarize(point["runs"])
    write(options, NAME, store=store_label(options), points=points)
    print(table(points))


if __name__ == "__main__":
    main()
