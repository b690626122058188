"""Data-parallel training with ChainerMN, several ranks per node, from a slow store.

Every rank trains the same small model for two epochs, with each loader: OverlapIterator with
staging on the slow store, MultiprocessIterator on the slow store, and MultiprocessIterator on the
local disk where the files are already. Without a slow store at hand one is emulated, whose
latency and bandwidth all ranks share, and several nodes are groups of ranks on this machine, each
with a staging directory of its own::

    python -m bench.data_parallel                              # 1, 2 and 4 ranks on one node
    python -m bench.data_parallel --nodes 1,2 --ranks 2        # two nodes as well
    python -m bench.data_parallel --model compute --ranks 2    # ours against data in memory

On a cluster it runs in a job of yours, on all its ranks and nodes, and emulates nothing::

    srun -N 4 --ntasks-per-node 4 python -m bench.data_parallel --in-job --communicator pure_nccl \
        --model resnet50 --source /lustre/imagenet --pairs /lustre/imagenet/train.txt \
        --staging /nvme/me --examples 1281167 --out results/4-nodes.json

All loaders have the same number of file readers and train on the same mini-batches in the same
order. The runs are interleaved. The result goes to a JSON file, from which
``python -m bench.training_figures`` draws; it takes several such files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pickle
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench import training_job
from bench.copying import read_files
from bench.isolated import CHECKOUT, RunFailedError
from bench.machine import machine_facts
from bench.progress import progress_bar
from bench.slowstore import SlowStore
from bench.spec import read_pairs
from bench.training_options import parse
from bench.training_plan import Point, Sources, interleaved, points_of, sources_of, spec_of
from bench.training_reads import reads_by_node, staged_by_node
from bench.training_spec import RankResult, TrainingSpec
from bench.training_summary import overheads, summarize, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT = ("model", "order", "examples", "batch_size", "epochs", "repeats", "seed", "communicator")


def command_of(point: Point, launcher: str | None, program: list[str]) -> list[str]:
    """Return the command of a job, in which each node is a group of ranks with a name."""
    command = shlex.split(launcher) if launcher else _open_mpi()
    for number in range(point.n_nodes):
        name = ["env", f"OVERLAPITER_NODE=node-{number}"] if point.n_nodes > 1 else []
        command += [":"] * (number > 0) + ["-n", str(point.n_ranks), *name, *program]
    return command


def _open_mpi() -> list[str]:
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else "mpiexec"
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    # Unbound: the workers of a rank would be confined to its one core.
    return [mpiexec, *as_root, "--oversubscribe", "--bind-to", "none"]


def run_job(point: Point, options: argparse.Namespace, spec: TrainingSpec, folder: Path) -> list:
    """Run all ranks of one run and return what each reports; blocks until they have ended.

    Raises:
        RunFailedError: The job did not end well. Its own messages are on standard error.
    """
    request, answer = folder / "spec.json", folder / "answer.json"
    request.write_text(json.dumps(dataclasses.asdict(spec)))
    answer.unlink(missing_ok=True)
    program = [sys.executable, "-W", "ignore", "-m", "bench.training_rank"]
    command = command_of(point, options.mpiexec, [*program, str(request), str(answer)])
    n_cores = len(os.sched_getaffinity(0))
    n_threads = max(1, n_cores // (point.n_nodes * point.n_ranks))
    environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads)}
    # A rank that waits for the others is not to take the cores that their readers need.
    environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    exit_status = _finish(command, environment)
    if exit_status != 0 or not answer.exists():
        raise RunFailedError(f"{shlex.join(command)} ended with {exit_status}")
    return json.loads(answer.read_text())


def _finish(command: list[str], environment: dict[str, str]) -> int:
    """Run a launcher to its end and return its exit status.

    One that is killed leaves its ranks behind, so it is asked to end when we are interrupted.
    """
    process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def run_here(
    points: list[Point], options: argparse.Namespace, sources: Sources, scratch: Path
) -> list[list[dict]]:
    """Start a job for each run on this machine, and return the runs of each point."""
    bandwidth = options.mb_per_s * 1e6 if options.mb_per_s > 0 else math.inf
    found: list[list[dict]] = [[] for _ in points]
    paths = [path for path, _ in read_pairs(sources.pairs, options.examples)]
    with SlowStore(sources.root, options.open_ms / 1e3, bandwidth) as store:
        handed_over = None if options.source else scratch / "store.pickle"
        if handed_over is not None:
            handed_over.write_bytes(pickle.dumps(store))
        for number, point in _with_progress(points, options.repeats):
            staging = scratch / f"staging-{number}-{len(found[number])}"
            os.sync()  # what the run before wrote is not to slow down this one
            if handed_over is not None:
                read_files(paths, sources.root)
            store.reset()
            spec = spec_of(point, options, sources, staging, handed_over)
            ranks = run_job(point, options, spec, scratch)
            results = [RankResult.from_dict(rank) for rank in ranks]
            emulated = handed_over is not None
            reads = reads_by_node(store.records(), results) if emulated else staged_by_node(results)
            found[number].append({"ranks": ranks, "reads": reads})
            if not emulated:  # a data set is large, and there may be room for one copy alone
                shutil.rmtree(staging, ignore_errors=True)
    return found


def _with_progress(points: list[Point], n_repeats: int) -> Iterator[tuple[int, Point]]:
    with progress_bar(len(points) * n_repeats, "run") as progress:
        for number, point in interleaved(points, n_repeats):
            progress.set_description(f"{point.n_nodes}x{point.n_ranks} {point.loader}")
            yield number, point
            progress.update()


def write(
    options: argparse.Namespace, sources: Sources, points: list[Point], runs: list[list[dict]]
) -> None:
    """Write the JSON file and print the table."""
    emulation = f"emulated store: {options.open_ms:g} ms per open, {options.mb_per_s:g} MB/s"
    lines = [
        {**point._asdict(), "summary": summarize(found), "runs": found}
        for point, found in zip(points, runs, strict=True)
    ]
    result = {
        "benchmark": "data-parallel",
        "store": "slow store given by the user" if options.source else emulation,
        "data": sources.label,
        "machine": machine_facts(),
        "load_average": os.getloadavg()[0],
        "options": {key: vars(options)[key] for key in _KEPT},
        "overheads": overheads(lines),
        "points": lines,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(table(result))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    options = parse(__doc__, arguments)
    if options.in_job:
        found = training_job.run(options)
        if found is not None:  # the first rank
            write(options, *found)
        return
    scratch = options.staging / f"data-parallel-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        sources = sources_of(options, scratch)
        points = points_of(options)
        write(options, sources, points, run_here(points, options, sources, scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
