"""How many reads of each epoch cross the slow store when the staging directory holds a part.

As ``bench.misses``, but counted at an emulated slow store under the real pipeline, for orders that
are shuffled anew in each epoch; the other policies are simulated on the same orders::

    python -m bench.misses_measured

It writes ``bench/results/misses-measured.json``; ``bench.miss_figures`` draws it. The files are
the photographs of the other benchmarks; they are read, but not decoded.
"""

from __future__ import annotations

from bench import isolated
from bench.epoch_options import parse, parser_for, request_for, scratch, store_label, write
from bench.misses import FRACTIONS, simulate, table
from bench.progress import progress_bar

NAME = "misses-measured"


def measure(request: dict) -> list[float]:
    """Return the share of the examples of each epoch that were read from the slow store.

    What is read ahead of the trainer across the end of an epoch counts in the earlier one.
    """
    opens = isolated.call("bench.epoch_runs", request)["store_opens"]
    return [round(n / request["n_examples"], 6) for n in opens]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = parser_for(__doc__, NAME, epochs=4, open_ms=2.0, bandwidth=1000.0)
    options = parse(parser, arguments)
    points = []
    with scratch(options) as local, progress_bar(len(FRACTIONS), "run") as progress:
        for fraction in FRACTIONS:
            sizes = options.examples, options.epochs, options.seed
            point = simulate("shuffled", fraction, *sizes)
            request = request_for(options, "overlap", fraction, local, is_decoding=False)
            del point["missed_by_epoch"]["ours"]
            point["missed_by_epoch"]["measured"] = measure(request)
            points.append(point)
            progress.update()
    words = f"measured with {options.examples:,} files, {options.epochs} epochs; "
    words += f"{store_label(options)}; the other policies simulated"
    write(options, NAME, words=words, points=points)
    print(table(points, "measured"))


if __name__ == "__main__":
    main()
