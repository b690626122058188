"""How many reads miss a staging directory smaller than the data set: ours, LRU, FIFO and the best.

The policies are simulated, each on the same orders, with files of one size; which are compared is
in ``bench.policies``. A read of the first epoch that misses had to, so counted are the later ones::

    python -m bench.misses

It writes ``bench/results/misses-simulated.json``; ``bench.miss_figures`` draws it, and
``bench.misses_measured`` counts the same in the pipeline itself.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.isolated import CHECKOUT
from bench.policies import ORDER_KINDS, POLICIES, WINDOW_SHARE, epoch_orders
from bench.progress import progress_bar
from bench.summary import aligned

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)


def simulate(kind: str, fraction: float, n_examples: int, n_epochs: int, seed: int) -> dict:
    """Return the shares of reads that miss, by policy, each epoch from the first on.

    Args:
        kind: How the orders come about, one of ``ORDER_KINDS``.
        fraction: Of the data set, what the staging directory holds.
        n_examples: Examples in the dataset.
        n_epochs: Epochs.
        seed: The orders follow from it.
    """
    orders = epoch_orders(kind, n_examples, n_epochs, seed)
    room = int(fraction * n_examples)
    shares = {}
    for name, policy in POLICIES.items():
        by_epoch = policy(orders, room).reshape(n_epochs, n_examples).mean(axis=1)
        shares[name] = [round(float(share), 6) for share in by_epoch]
    return {"order": kind, "fraction": fraction, "room": room, "missed_by_epoch": shares}


def later_share(point: dict, policy: str) -> float:
    """Return the share of reads of the second and later epochs that miss."""
    later = point["missed_by_epoch"][policy][1:]
    return sum(later) / len(later)


def table(points: list[dict], ours: str = "ours") -> str:
    """Return the misses of epoch 2 and later in percent, a row for each point.

    Args:
        points: What :func:`simulate` returns.
        ours: The policy to compare with the optimum.
    """
    names = list(points[0]["missed_by_epoch"])
    rows = [["order", "fraction", *names, f"{ours} - belady"]]
    for point in points:
        shares = {name: 100 * later_share(point, name) for name in names}
        above = shares[ours] - shares["belady"]
        numbers = [f"{share:.2f}" for share in [*shares.values(), above]]
        rows.append([point["order"], f"{point['fraction']:g}", *numbers])
    return f"Reads that miss, epoch 2 and later, in percent.\n\n{aligned(rows)}\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--examples", type=int, default=20_000, help="examples in the dataset (%(default)s)")
    add("--epochs", type=int, default=6, help="epochs, at least 2 (%(default)s)")
    add("--seed", type=int, default=0, help="the orders follow from it (%(default)s)")
    add("--out", type=Path, default=CHECKOUT / "bench/results/misses-simulated.json")
    options = parser.parse_args(arguments)
    if options.epochs < 2:
        parser.error("--epochs: give at least 2")
    cases = [(kind, fraction) for kind in ORDER_KINDS for fraction in FRACTIONS]
    points = []
    with progress_bar(len(cases), "case") as progress:
        for case in cases:
            points.append(simulate(*case, options.examples, options.epochs, options.seed))
            progress.update()
    result = {
        "benchmark": "misses-simulated",
        "options": {key: value for key, value in vars(options).items() if key != "out"},
        "window_share": WINDOW_SHARE,
        "words": f"simulated: {options.examples:,} files of one size, {options.epochs} epochs",
        "points": points,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(table(points))


if __name__ == "__main__":
    main()
