"""Where the time of the pipeline goes: cold, staged and local, beside the opponents and the limits.

All runs are over the same photographs, 250 mini-batches of 32, each in a process of its own and
with a staging directory of its own, in turns::

    python -m bench.pipeline --mount fuse            # a real mount with a delay, some 8 minutes
    python -m bench.pipeline --mount emulated        # a delay inside open, without privileges
    python -m bench.pipeline --source /lustre/images --pairs /lustre/images/pairs.txt
    python -m bench.pipeline --quick                 # a look at whether all of it runs

Beside the rates it reports what each kind of process used of the CPU for an image, read from
``/proc`` before ``finalize``, so that the start of each process counts; and what has to be reached
(``bench.pipeline_targets``), met or missed. Rates are given with everything included, and from the
first mini-batch on. The ceiling is what a cold run could reach: loops over ``dataset[i]`` on local
files while 64 threads of one more process read every file once from the store and forget it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from bench.interleaved import (
    STAGED,
    Sources,
    add_source_options,
    check_source_options,
    prepare,
    prepare_local,
    run_all,
    store_facts,
    store_label,
    verify,
)
from bench.isolated import CHECKOUT
from bench.machine import commit_facts, filesystem_of, machine_facts
from bench.pipeline_targets import target_rows, targets
from bench.slowmount import MountUnavailableError, build
from bench.spec import LOADERS_OF_STORE, RunSpec
from bench.summary import aligned, spread

NUM_BATCHES, SLOW_BATCHES, FEW_BATCHES = 250, 60, 8


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        name: Of the line, a key of the result.
        loader: See :mod:`bench.spec`.
        n_prefetchers: None for the default.
        n_readers: None for that of ``--readers``.
        length: Mini-batches: "all", "slow" or "few".
    """

    name: str
    loader: str
    n_prefetchers: int | None = None
    n_readers: int | None = None
    length: str = "all"


LINES = (
    Line("cold", "overlap"),
    Line("staged", "overlap-staged"),
    Line("local", "overlap-local"),
    Line("from local", "overlap-from-local"),
    Line("cold, 12 prefetchers", "overlap", n_prefetchers=12),
    Line("cold, 16 readers", "overlap", n_readers=16),
    Line("first of 16 and 12", "overlap", n_prefetchers=12, n_readers=16, length="few"),
    Line("stock, slow store", "slow", length="slow"),
    Line("stock, local", "fast"),
    Line("loops", "floor"),
    Line("ceiling", "ceiling"),
)

MEANINGS = {
    "cold": "OverlapIterator on the slow store, nothing staged before",
    "staged": "OverlapIterator on the slow store, everything staged before",
    "local": "OverlapIterator without staging on the local disk",
    "from local": "OverlapIterator that stages from the local disk, nothing staged before",
    "cold, 12 prefetchers": "cold with n_prefetchers=12",
    "cold, 16 readers": "cold with 16 file readers",
    "first of 16 and 12": "cold with 16 file readers and 12 prefetchers, for its first mini-batch",
    "stock, slow store": "MultiprocessIterator on the slow store",
    "stock, local": "MultiprocessIterator on the local disk",
    "loops": "plain loops over dataset[i], one for each core, local disk",
    "ceiling": "the same beside 64 threads that read every file of the slow store once",
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the checked options; ends the program if they cannot work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add_source_options(parser)
    add("--batch-size", type=int, default=32, help="images in a mini-batch (%(default)s)")
    add("--batches", type=int, default=NUM_BATCHES, help="mini-batches (%(default)s)")
    add("--slow-batches", type=int, default=SLOW_BATCHES, help="of the slow (%(default)s)")
    add("--readers", type=int, default=2, help="file reader processes (%(default)s)")
    add("--lines", type=_names, default=list(LINES), help="some of them, separated by ';'")
    add("--seed", type=int, default=0, help="seed of the order (%(default)s)")
    add("--repeats", type=int, default=5, help="runs of each line (%(default)s)")
    add("--quick", action="store_true", help="12 mini-batches of 4, once: it runs, no more")
    add("--out", type=Path, help="JSON file (bench/results/pipeline-MOUNT.json)")
    options = parser.parse_args(arguments)
    check_source_options(options, parser)
    if options.quick:
        options.batch_size, options.batches, options.slow_batches, options.repeats = 4, 12, 4, 1
    kind = "given" if options.source else options.mount
    options.out = options.out or CHECKOUT / f"bench/results/pipeline-{kind}.json"
    if options.mount == "fuse" and not options.source:
        try:
            build()
        except MountUnavailableError as error:
            parser.error(f"--mount fuse: {error}")
    return options


def _names(text: str) -> list[Line]:
    lines = {line.name: line for line in LINES}
    names = [name.strip() for name in text.split(";")]
    if unknown := sorted(set(names) - set(lines)):
        raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {'; '.join(lines)}")
    return [lines[name] for name in names]


def spec_of(line: Line, options: argparse.Namespace, sources: Sources) -> RunSpec:
    """Return what to run for a line."""
    batches = {"all": options.batches, "slow": options.slow_batches, "few": FEW_BATCHES}
    is_of_store = line.loader in LOADERS_OF_STORE and line.loader != "ceiling"
    return RunSpec(
        loader=line.loader,
        pairs=sources.pairs,
        n_examples=options.batches * options.batch_size,
        root=sources.slow if is_of_store else sources.local,
        slow_root=sources.slow,
        staging=str(sources.scratch / STAGED),
        batch_size=options.batch_size,
        n_batches=min(batches[line.length], options.batches),
        n_prefetchers=line.n_prefetchers,
        n_readers=line.n_readers or options.readers,
        seed=options.seed,
        **store_facts(options, sources),
    )


def measure(options: argparse.Namespace) -> dict:
    """Do all runs and return the result, as it is written to the JSON file."""
    n_examples = options.batches * options.batch_size
    n_runs = len(options.lines) * options.repeats
    # Without a terminal there is no progress bar, and nothing else is printed for minutes.
    print(f"{n_runs} runs over {n_examples:,} images follow", file=sys.stderr, flush=True)
    sources = prepare(options, "pipeline", n_examples)
    specs = [spec_of(line, options, sources) for line in options.lines]
    sources.scratch.mkdir(parents=True)
    load_average = os.getloadavg()[0]
    try:
        prepare_local(specs, sources)
        names = [line.name for line in options.lines]
        runs = run_all(specs, names, options.repeats, drops_caches=options.drop_caches)
        disk = filesystem_of(sources.scratch)
    finally:
        shutil.rmtree(sources.scratch, ignore_errors=True)
    points = [
        {**line._asdict(), "n_batches": spec.n_batches, "n_readers": spec.n_readers, "runs": found}
        for line, spec, found in zip(options.lines, specs, runs, strict=True)
    ]
    verified = verify(points)
    return {
        "benchmark": "pipeline",
        **commit_facts(),
        "store": store_label(options),
        "data": sources.label,
        "page_cache": "dropped before each run" if options.drop_caches else "warm before each run",
        "staging_filesystem": disk,
        "machine": machine_facts(),
        "load_average": load_average,
        "options": {
            name: vars(options)[name]
            for name in ("batches", "slow_batches", "batch_size", "readers", "seed", "repeats")
        },
        "verified": verified,
        "points": points,
        "targets": [dataclasses.asdict(found) for found in targets(points)],
    }


def tables(result: dict) -> str:
    """Return everything that is printed at the end, as text."""
    options, machine = result["options"], result["machine"]
    checked = result["verified"]
    verdict = (
        f"All loaders delivered the same examples ({checked['batches']} mini-batches compared)."
        if not checked["different"]
        else f"DIFFERENT EXAMPLES were delivered: {checked['different']}"
    )
    changed = f" and {len(result['changed'])} changed files" if result["changed"] else ""
    sections = [
        f"{options['batches']} mini-batches of {options['batch_size']}, {result['data']}\n"
        f"{result['store']}; page cache of the source: {result['page_cache']}\n"
        f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}; commit "
        f"{result['commit'][:12]}{changed}; medians of {options['repeats']} runs [min, max]",
        "\n".join(f"{point['name']}: {MEANINGS[point['name']]}" for point in result["points"]),
        _rates(result["points"]),
        "Microseconds of CPU for an image, by kind of process, the start of each included:\n"
        + _cpu(result["points"], options["batch_size"]),
        aligned(target_rows(result["targets"])),
        verdict,
    ]
    return "\n\n".join(sections) + "\n"


def _rates(points: list[dict]) -> str:
    rows = [["", "readers", "batches", "images/s", "[min, max]", "after first", "first s", "opens"]]
    for point in points:
        rate = spread(run["images_per_second"] for run in point["runs"])
        steady = spread(run["rate_after_first"] for run in point["runs"])
        first = spread(run["first_batch_seconds"] for run in point["runs"])
        opens = point["runs"][0]["store_opens"]
        row = [point["name"], str(point["n_readers"]), str(point["n_batches"])]
        row += [f"{rate['median']:.0f}", f"[{rate['min']:.0f}, {rate['max']:.0f}]"]
        row += [f"{steady['median']:.0f}", f"{first['median']:.2f}"]
        rows.append([*row, "-" if opens is None else str(opens)])
    return aligned(rows)


def _cpu(points: list[dict], batch_size: int) -> str:
    kinds = list(dict.fromkeys(kind for point in points for kind in point["runs"][0]["cpu"]))
    rows = [["", *kinds, "all"]]
    for point in points:
        n_images = point["n_batches"] * batch_size
        cells = []
        for kind in kinds:
            used = [run["cpu"].get(kind, {}).get("seconds", 0.0) for run in point["runs"]]
            cells.append(spread(used)["median"] / n_images * 1e6)
        rows.append([point["name"], *(f"{cell:.0f}" for cell in [*cells, sum(cells)])])
    return aligned(rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 1 if a loader delivered other examples."""
    options = parse(arguments)
    result = measure(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(tables(result))
    print(f"Every number is in {os.path.relpath(options.out)}.")
    return 1 if result["verified"]["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
