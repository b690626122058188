"""Data-parallel training with ChainerMN, several ranks per node, from a slow store.

Every rank trains the same small model for two epochs, with each loader. Without a slow store at
hand one is emulated, and several nodes are groups of ranks on this machine. On a cluster it runs in
a job of yours, on all its ranks and nodes, and emulates nothing: ``--in-job``.
"""

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.harness import isolated
from bench.harness.options import OptionsError, option, picked
from bench.harness.tables import interval, spread, table
from bench.loaders.files import read_files
from bench.loaders.ranks import run_ranks
from bench.loaders.sources import EpochOptions, prepare, spec_of
from bench.slow.store import OpenRecord

N_CLASSES = 1000
WAIT_SECONDS = 0.07
MODELS = ("data", "waits", "resnet50")
#: What each name of a loader means, for tables and figures.
LOADERS = {
    "overlap": "OverlapIterator on the slow store, nothing staged before",
    "slow": "MultiprocessIterator on the slow store",
    "local": "MultiprocessIterator on the local disk, all files there before",
    "synthetic": "prepared mini-batches in memory, no loader",
}
#: What loading may add where data are not the bottleneck, as a share.
MOST_COST = 0.01


class Options(EpochOptions):
    ranks: list[int] = option([1, 2, 4], "per node", quick=[2])
    nodes: list[int] = option([1], "groups of ranks that share a directory")
    loaders: list[str] = option([], f"of {', '.join(LOADERS)}", known=LOADERS)
    model: str = option("data", "data: next to no computing (data)", choices=MODELS)
    order: str = option("global", "of examples (global)", choices=("global", "shards"))
    examples: int = option(4096, "images", quick=48)
    iterations: int = option(0, "of an epoch for each rank: sets --examples", quick=0)
    epochs: int = 2
    readers: int | None = option(None, "readers of a rank (its share of the cores)")
    in_job: bool = option(False, "this is a rank of a job that a launcher started")
    communicator: str = option("naive", "ChainerMN's name; another one has GPUs")

    @property
    def usual(self) -> dict[str, object]:
        return {**super().usual, "order": self.order}

    def check(self) -> None:
        usual = ["overlap", "slow", "local"] if self.model == "data" else ["overlap", "synthetic"]
        self.loaders = self.loaders or usual
        super().check()
        if self.in_job and not self.source:
            raise OptionsError("--in-job needs --source, --pairs: emulation is for one machine")

    def examples_of(self, n_ranks: int) -> int:
        """Return how many images so many ranks train on in an epoch."""
        return self.iterations * self.batch_size * n_ranks or self.examples


def network(name: str) -> Any:
    """Return what maps images, at least 224 pixels high and wide, to scores of 1,000 classes.

    ``data`` is next to no work, so that the data are what counts: a layer over every 32nd pixel;
    ``waits`` the same after a wait, in which the cores are free, as beside an accelerator;
    ``resnet50`` Chainer's own, untrained, over the pixels in the corner.
    """
    import chainer
    import chainer.links as L

    class ResNet50(L.ResNet50Layers):
        def forward(self, x: chainer.Variable) -> chainer.Variable:
            return super().forward(x[:, :, :224, :224] / 255, layers=["fc6"])["fc6"]

    def every_32nd_pixel(x: chainer.Variable) -> chainer.Variable:
        time.sleep(WAIT_SECONDS if name == "waits" else 0)
        return x[:, :, ::32, ::32] / 255

    if name == "resnet50":
        return ResNet50(pretrained_model=None)
    return chainer.Sequential(every_32nd_pixel, L.Linear(None, N_CLASSES))


def training_step(request: dict, comm: Any, device: int) -> tuple[Callable, Callable]:
    """Return what trains a rank on a mini-batch, and that there is no more to report."""
    import chainer
    import chainermn  # starts MPI, so the communicator is there before

    np.random.seed(request["spec"].seed)  # the weights are drawn from it
    model = chainer.links.Classifier(network(request["model"]))
    model.compute_accuracy = False
    if device >= 0:
        chainer.backends.cuda.get_device_from_id(device).use()
        model.to_gpu()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1e-3), comm)
    optimizer.setup(model)

    def step(loader: Any, batch: list) -> float:
        optimizer.update(model, *loader.concat(batch, device))
        return float(model.loss.array)

    return step, dict


def measure(options: Options) -> dict | None:
    """Do all runs; within a job, None on all ranks but the first."""
    rank = _join(options) if options.in_job else 0
    n_cores = len(os.sched_getaffinity(0))
    points = [
        {"n_nodes": n_nodes, "n_ranks": n_ranks, "loader": loader,
         "n_readers": options.readers or max(1, n_cores // (n_nodes * n_ranks))}
        for n_nodes in options.nodes for n_ranks in options.ranks for loader in options.loaders
    ]  # fmt: skip
    base, facts = prepare(options, options.examples_of(max(options.nodes) * max(options.ranks)))

    def run(point: dict) -> dict:
        n_nodes, n_ranks = point["n_nodes"], point["n_ranks"]
        usual = {**options.usual, "n_examples": options.examples_of(n_nodes * n_ranks)}
        spec = spec_of(base, {**usual, **point})
        if not options.source:
            read_files(spec.paths(), spec.root)
        asked = picked(options, ("model", "communicator"))
        size = n_ranks * (not options.in_job), n_nodes
        # Idle threads of NumPy's BLAS spin, so that a rank which waits has no more than its own.
        n_threads = 1 if options.model == "waits" else None
        ranks, opens = run_ranks(spec, training_step, asked, *size, n_threads=n_threads)
        return {"ranks": ranks, "reads": reads_by_node(ranks, opens)}

    isolated.take_turns(points, options.repeats, run)
    return {**facts, "points": points} if rank == 0 else None


def _join(options: Options) -> int:
    """Take the sizes of the job of this process, and a folder of its node; return its rank."""
    import overlapiter.mpi
    from overlapiter.node import this_node

    warnings.simplefilter("ignore")  # of Chainer about its dependencies
    comm, node = overlapiter.mpi.create_communicator(options.communicator), this_node()
    folders = comm.mpi_comm.allgather((node.name, options.scratch))
    options.nodes, options.ranks = [len({name for name, _ in folders})], [node.local_size]
    options.readers = options.readers or node.cores
    options.scratch = next(folder for name, folder in folders if name == node.name)
    return comm.rank


def reads_by_node(ranks: Sequence[dict], records: Sequence[OpenRecord]) -> list[dict]:
    """Return what each node read from an emulated store, in the order of their first ranks."""
    nodes = {pid: rank["node"] for rank in ranks for e in rank["epochs"] for pid in e["pids"]}
    if strangers := {record.pid for record in records} - nodes.keys():
        raise ValueError(f"processes {sorted(strangers)}, which read files, are of no rank")
    paths = {rank["node"]: Counter() for rank in ranks if records}
    for record in records:
        paths[nodes[record.pid]][record.path] += 1
    return [
        {"node": node, "opens": opens.total(), "files": len(opens),
         "most_opens": max(opens.values(), default=0)}
        for node, opens in paths.items()
    ]  # fmt: skip


def summarize(runs: Sequence[dict]) -> list[dict]:
    """Return for each epoch spreads and medians over the runs of one point, all ranks together."""
    summaries = []
    for number in range(len(runs[0]["ranks"][0]["epochs"])):
        by_run = [[rank["epochs"][number] for rank in run["ranks"]] for run in runs]
        # The mean over ranks, which all updates synchronize; not from the first start to the last
        # end: these are on the clocks of different machines.
        seconds = [np.mean([epoch["seconds"] for epoch in ranks]) for ranks in by_run]
        shares = [[e["wait_seconds"] / e["seconds"] for e in ranks] for ranks in by_run]
        wait_share = np.median(np.mean(shares, axis=1))
        summaries.append({"seconds": spread(seconds), "wait_share": wait_share})
    return summaries


def _sum(*keys: str, first: int = 0) -> Callable[[dict], float]:
    """Return what adds up numbers of the epochs of a rank, from one of them on."""
    return lambda rank: sum(epoch[key] for epoch in rank["epochs"][first:] for key in keys)


def _at_work(rank: dict) -> float:
    first, *_, last = rank["epochs"]
    return last["end"] - first["start"] - rank["start_seconds"]


_AT_WORK = "from the first mini-batch on"
#: What of a rank is compared, by words for it. CPU time changes less where the machine is busy;
#: ranks that wait for others take some, since MPI polls.
_TOTALS: dict[str, Callable[[dict], float]] = {
    _AT_WORK: _at_work,
    "all epochs": _sum("seconds"),
    "after the first epoch": _sum("seconds", first=1),
    "CPU time": _sum("trainer_cpu_seconds", "workers_cpu_seconds"),
}


def _size(point: dict) -> str:
    return f"{point['n_nodes']} x {point['n_ranks']}"


def words_of(point: dict) -> str:
    ranks = f"{point['n_ranks']} rank" + "s" * (point["n_ranks"] > 1)
    return ranks if point["n_nodes"] == 1 else f"{point['n_nodes']} nodes, {ranks} each"


def _by_size(points: Sequence[dict]) -> list[dict]:
    return sorted(points, key=lambda point: (point["n_nodes"], point["n_ranks"]))


def cost_rows(result: dict) -> list[list[str]]:
    """Return for each size how much more ours took than data in memory, with intervals of 95%."""
    others = {_size(p): p for p in result["points"] if p["loader"] == "synthetic"}
    ours = [p for p in result["points"] if p["loader"] == "overlap" and _size(p) in others]

    def more(point: dict, what: str) -> tuple[float, float]:
        pairs = zip(point["runs"], others[_size(point)]["runs"], strict=True)
        totals = [[np.mean([*map(_TOTALS[what], run["ranks"])]) for run in pair] for pair in pairs]
        return interval([one / other - 1 for one, other in totals])

    def verdict(point: dict) -> str:
        share, error = more(point, _AT_WORK)
        if abs(share - MOST_COST) < error:  # 1% cannot be told from noise
            return "within noise"
        return "met" if share < MOST_COST else "missed"

    columns = {"nodes x ranks": _size} | {
        what: lambda point, what=what: "{:+.2%} ± {:.2%}".format(*more(point, what))
        for what in _TOTALS
    }
    return table(ours, {**columns, f"{MOST_COST:.0%} wanted, {_AT_WORK}": verdict})


def training_rows(result: dict) -> list[list[str]]:
    cells = {
        (point["loader"], f"{words_of(point)}, epoch {number}"):
            f"{epoch['seconds']['median']:.1f} ({epoch['wait_share']:.0%})"
        for point in _by_size(result["points"])
        for number, epoch in enumerate(summarize(point["runs"]), 1)
    }  # fmt: skip
    loaders, heads = (dict.fromkeys(keys) for keys in zip(*cells, strict=True))
    columns = {"seconds of an epoch (waiting)": LOADERS.get} | {
        head: lambda name, head=head: cells.get((name, head), "-") for head in heads
    }
    return table([name for name in LOADERS if name in loaders], columns)


def node_read_rows(result: dict) -> list[list[str]]:
    """Return what each node read from the store in the first run of each point."""
    reads = [(p["loader"], node) for p in result["points"] for node in p["runs"][0]["reads"] or ()]
    columns = {
        "loader": "{meaning}", "node": "{node}", "opens": "{opens}", "different files": "{files}",
        "of any one file, at most": "{most_opens}"
    }  # fmt: skip
    return table(({**node, "meaning": LOADERS[loader]} for loader, node in reads), columns)


TABLES = {"training": training_rows, "node-reads": node_read_rows, "costs": cost_rows}
AXES = {"sharey": True}


def marks(result: dict) -> list[tuple]:
    return [
        (f"Epoch {number}: seconds per epoch", LOADERS[point["loader"]], words_of(point),
         epoch["seconds"].values())
        for point in _by_size(result["points"])
        for number, epoch in enumerate(summarize(point["runs"]), 1)
    ]  # fmt: skip
