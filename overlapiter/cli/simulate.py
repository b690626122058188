r"""Simulate what a training run takes under different ways to feed it data.

The four scenarios are those of the published simulations; options change single numbers of one, so
that it is yours. Sizes are in MB, rates in MB/s, times in seconds. docs/clairvoyant.md says what
each policy does, and which equations are used.

Examples:
  overlapiter simulate --scenario 2
  overlapiter simulate --scenario 1 --json
  overlapiter simulate --ranks 1024 --examples 1281167 --mean-size 0.11 --tiers 10000:20000 \
      --store 1:200,1024:20000 --output figure.png

exit code: 0, or 1 if the figure cannot be drawn
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from overlapiter.clairvoyant.model import System, Tier
from overlapiter.clairvoyant.policies import POLICIES, simulate
from overlapiter.clairvoyant.workload import SCENARIOS, Scenario
from overlapiter.options import check_count
from overlapiter.words import count_words, duration_words

from .console import Progress, UsageError, above_0, add_figure, at_least, table, tell
from .plots import draw_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument  # what goes into the scenario is called as it is there
    number = "a published scenario, 1 to 4 (default: 1), or what other options change"
    add("--scenario", metavar="N", type=int, choices=sorted(SCENARIOS), default=1, help=number)
    seed = "sizes and orders follow from it (0)"
    add("--seed", metavar="N", type=at_least(0), default=0, help=seed)
    add_figure(parser)
    names = ", ".join(POLICIES)
    add("--policies", metavar="NAMES", type=_names, help=f"some of: {names} (default: all)")
    count = at_least(1)
    add("--ranks", dest="n_ranks", metavar="N", type=count, help="ranks of the job")
    add("--ranks-per-node", metavar="N", type=count, help="ranks that share a node")
    add("--examples", dest="n_examples", metavar="N", type=count, help="examples in the data set")
    add("--epochs", dest="n_epochs", metavar="N", type=count, help="epochs")
    batch = "examples in a mini-batch of all ranks (default: 25 for each rank)"
    add("--global-batch", dest="global_batch_size", metavar="N", type=count, help=batch)
    add("--mean-size", metavar="MB", type=above_0, help="mean size of an example, in MB")
    add("--size-deviation", metavar="MB", type=float, help="standard deviation of the sizes, in MB")
    add("--compute-rate", metavar="MB/S", type=above_0, help="what the trainer of a rank consumes")
    add("--preprocess-rate", metavar="MB/S", type=above_0, help="what a thread decodes")
    add("--network-rate", metavar="MB/S", type=above_0, help="between two nodes")
    add("--store-link-rate", metavar="MB/S", type=above_0, help="from the store to a node")
    store = "what the store gives so many clients together, as 1:66,4:146, in MB/s"
    add("--store", dest="store_rates", metavar="N:RATE,…", type=_store, help=store)
    tiers = "tiers of a rank, the fastest first, as CAPACITY:RATE[:THREADS], in MB and MB/s"
    add("--tiers", metavar="TIER,…", type=_tiers, help=tiers)


def run(arguments: argparse.Namespace) -> int:
    """Simulate; return the exit code."""
    scenario = _scenario(arguments)
    policies = arguments.policies or list(POLICIES)
    with Progress(len(policies), "policies") as shown:
        seconds = simulate(scenario, arguments.seed, policies, lambda _name: shown.advance())
    number = arguments.scenario if scenario == SCENARIOS[arguments.scenario] else None
    text = f"{_title(scenario)}\n\n{_table(seconds)}"
    tell(arguments, text, scenario=number, seconds=seconds)
    if arguments.output:
        draw_seconds(seconds, _title(scenario), arguments.output)
    return 0


def _scenario(arguments: argparse.Namespace) -> Scenario:
    """Return the scenario, with the numbers that were given in the place of its own."""
    usual = SCENARIOS[arguments.scenario]
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    names = {field.name for field in dataclasses.fields(System)} & given.keys()
    changed: dict[str, Any] = {"ranks_per_node": 1} | {name: given[name] for name in names}
    system = dataclasses.replace(usual.system, **changed)
    batch_size = usual.global_batch_size // usual.system.n_ranks * system.n_ranks
    changed = {"global_batch_size": batch_size, "system": system}
    changed |= {name: given[name] for name in given.keys() & Scenario._fields}
    scenario = usual._replace(**changed)
    if not 0 <= scenario.size_deviation < 1e15:
        raise UsageError("--size-deviation: give at least 0")
    check_count("--examples", scenario.n_examples, minimum=system.n_ranks)
    return scenario


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; known: {', '.join(POLICIES)}")
    return names


def _store(text: str) -> dict[int, float]:
    try:
        pairs = [pair.split(":") for pair in text.split(",")]
        rates = {int(n): float(rate) for n, rate in pairs}
        if not all(n > 0 and rate > 0 for n, rate in rates.items()):
            raise ValueError
    except ValueError:
        message = f"{text!r}: write clients and MB/s, as 1:66,4:146"
        raise argparse.ArgumentTypeError(message) from None
    return rates


def _tiers(text: str) -> tuple[Tier, ...]:
    try:
        numbers = [words.split(":") for words in text.split(",")]
        tiers = tuple(Tier(float(mb), float(rate), *map(int, n)) for mb, rate, *n in numbers)
        if not all(t.capacity >= 0 and t.rate > 0 and t.n_threads > 0 for t in tiers):
            raise ValueError
    except (ValueError, TypeError):
        message = f"{text!r}: write MB and MB/s, as 50000:21164 or 50000:21164:2"
        raise argparse.ArgumentTypeError(message) from None
    return tiers


def _title(scenario: Scenario) -> str:
    system: System = scenario.system
    tiers = " and ".join(f"{t.capacity:,.0f} MB at {t.rate:,.0f} MB/s" for t in system.tiers)
    return (
        f"{count_words(scenario.n_examples, 'example')} of {scenario.mean_size:g} MB, "
        f"{count_words(scenario.n_epochs, 'epoch')}, {count_words(system.n_ranks, 'rank')} with "
        f"{tiers} each"
    )


def _table(seconds: dict[str, float | None]) -> str:
    bound = seconds.get("lower bound")
    rows = []
    for name, value in seconds.items():
        times = "-" if not bound or value is None else f"{value / bound:.2f}"
        words = "cannot run" if value is None else f"{value:,.2f}"
        # Seconds are easier to compare, hours easier to imagine; below a minute they are the same.
        long_words = duration_words(value) if value is not None and value >= 60 else ""
        rows.append((name, words, long_words, times))
    heads = ("policy", "seconds", "", "of the lower bound")
    n_columns = len(heads) if bound else 3  # there is none to compare with unless it was chosen
    return table(heads[:n_columns], [row[:n_columns] for row in rows])
