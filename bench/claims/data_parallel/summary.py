"""What the runs of data-parallel training come to: who read what, medians, tables."""

from __future__ import annotations

from collections import Counter
from statistics import mean, median
from typing import TYPE_CHECKING

from bench.harness.text import aligned, extremes, spread, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bench.slow.ledger import OpenRecord

#: What each name of a loader means, for tables and figures.
LOADERS = {
    "overlap": "OverlapIterator on the slow store, nothing staged before",
    "slow": "MultiprocessIterator on the slow store",
    "local": "MultiprocessIterator on the local disk, all files there before",
    "synthetic": "prepared mini-batches in memory, no loader",
}


# --- reads of the store -----------------------------------------------------------------------


def reads_by_node(records: Iterable[OpenRecord], ranks: Sequence[dict]) -> list[dict]:
    """Return what each node read, in the order of their first ranks.

    Returns:
        Dicts of ``node``; ``epoch_opens`` and ``epoch_bytes``, lists over epochs and, as the last
        entry, what was read ahead beyond them; ``files``, how many different ones; and
        ``most_opens``, of any one file.

    Raises:
        ValueError: An open was by no process of any rank.
    """
    node_of = {pid: rank["node"] for rank in ranks for pid in rank["pids"]}
    found, ends = {}, {}
    for node in dict.fromkeys(rank["node"] for rank in ranks):
        by_epoch = zip(*(rank["epochs"] for rank in ranks if rank["node"] == node), strict=True)
        ends[node] = [max(epoch["end"] for epoch in epochs) for epochs in by_epoch]
        found[node] = {name: [0] * (len(ends[node]) + 1) for name in ("epoch_opens", "epoch_bytes")}
    by_path: dict[str, Counter[str]] = {node: Counter() for node in found}
    for record in records:
        if record.pid not in node_of:
            raise ValueError(f"process {record.pid}, which read {record.path}, is of no rank")
        node = node_of[record.pid]
        epoch = sum(record.ready_seconds > end for end in ends[node])
        found[node]["epoch_opens"][epoch] += 1
        found[node]["epoch_bytes"][epoch] += record.size_bytes
        by_path[node][record.path] += 1
    for node, counts in by_path.items():
        found[node] |= {"files": len(counts), "most_opens": max(counts.values(), default=0)}
    return [{"node": node, **reads} for node, reads in found.items()]


def staged_by_node(ranks: Sequence[dict]) -> list[dict] | None:
    """Return the same of what the ranks say that they have staged; None if they have not."""
    if ranks[0]["epochs"][0]["files_staged"] is None:
        return None
    found = []
    for node in dict.fromkeys(rank["node"] for rank in ranks):
        of_node = (rank["epochs"] for rank in ranks if rank["node"] == node)
        by_epoch = list(zip(*of_node, strict=True))
        sums = {
            f"epoch_{name}": [sum(epoch[key] for epoch in each) for each in by_epoch]
            for name, key in (("opens", "files_staged"), ("bytes", "bytes_staged"))
        }
        found.append({"node": node, **sums, "files": None, "most_opens": None})
    return found


# --- medians ----------------------------------------------------------------------------------


def seconds_of(epoch: dict) -> float:
    """Return how long an epoch took one rank."""
    return epoch["end"] - epoch["start"]


def summarize(runs: Sequence[dict]) -> list[dict]:
    """Return for each epoch what the runs of one point come to.

    Returns:
        ``seconds`` and ``images_per_second`` of all ranks together, spreads over the runs; the
        median over runs of ``wait_share``, the mean over ranks, of ``worst_wait_share``, and of
        ``staged_share``, and of ``worker_cpu_seconds_per_image``; and ``node_opens`` and
        ``node_bytes``, medians of the mean node.
    """
    summaries = []
    for number in range(len(runs[0]["ranks"][0]["epochs"])):
        summary = _summary([[rank["epochs"][number] for rank in run["ranks"]] for run in runs])
        for name in ("opens", "bytes"):
            reads = [run["reads"] for run in runs]
            summary[f"node_{name}"] = reads[0] and median(
                mean(node[f"epoch_{name}"][number] for node in each) for each in reads
            )
        summaries.append(summary)
    return summaries


def _summary(runs: Sequence[Sequence[dict]]) -> dict:
    """Summarize one epoch: of each run, of each rank."""
    # The mean over ranks, which all updates synchronize; not from the first start to the last end:
    # these are on the clocks of different machines.
    seconds = [mean(map(seconds_of, ranks)) for ranks in runs]
    images = [sum(epoch["n_images"] for epoch in ranks) for ranks in runs]
    shares = [[epoch["wait_seconds"] / seconds_of(epoch) for epoch in ranks] for ranks in runs]
    staged = [[epoch["staged_share"] for epoch in ranks] for ranks in runs]
    cpu = [sum(epoch["workers_cpu_seconds"] for epoch in ranks) for ranks in runs]
    return {
        "seconds": spread(seconds),
        "images_per_second": spread(n / s for n, s in zip(images, seconds, strict=True)),
        "wait_share": median(map(mean, shares)),
        "worst_wait_share": median(map(max, shares)),
        "staged_share": None if staged[0][0] is None else median(map(mean, staged)),
        "worker_cpu_seconds_per_image": median(s / n for s, n in zip(cpu, images, strict=True)),
    }


def overheads(points: Sequence[dict]) -> dict[str, dict]:
    """Return how much longer our runs took than those with data in memory, as a share.

    Runs of the same repeat are compared: the time of all epochs, that of all but the first, and
    the CPU time of ranks and workers, which a busy machine changes less; ranks that wait for
    others take CPU time, since MPI polls. The keys are like ``1 x 2``, nodes and ranks per node.
    """
    found = {}
    others = {_size(point): point for point in points if point["loader"] == "synthetic"}
    for point in points:
        if point["loader"] == "overlap" and _size(point) in others:
            both = zip(point["runs"], others[_size(point)]["runs"], strict=True)
            pairs = [(_totals(run), _totals(other)) for run, other in both]
            found[_size(point)] = {
                name: spread(run[name] / other[name] - 1 for run, other in pairs)
                for name in pairs[0][0]
            }
    return found


def _totals(run: dict) -> dict[str, float]:
    ranks = [rank["epochs"] for rank in run["ranks"]]
    cpu = ("trainer_cpu_seconds", "workers_cpu_seconds")
    return {
        "all_epochs": mean(sum(map(seconds_of, epochs)) for epochs in ranks),
        "after_the_first": mean(sum(map(seconds_of, epochs[1:])) for epochs in ranks),
        "cpu_time": sum(epoch[name] for epochs in ranks for epoch in epochs for name in cpu),
    }


def _size(point: dict) -> str:
    return f"{point['n_nodes']} x {point['n_ranks']}"


# --- tables -----------------------------------------------------------------------------------


def show(result: dict) -> str:
    """Return everything that is printed at the end."""
    options, points = result["options"], result["points"]
    head = f"{options['epochs']} epochs, mini-batches of {options['batch_size']}, model "
    head += (
        f"{options['model']!r}, order {options['order']!r}; medians of {options['repeats']} runs"
    )
    names = dict.fromkeys(point["loader"] for point in points)
    pairs = [(point, number) for point in points for number in range(len(point["summary"]))]
    sections = [head, "\n".join(f"{name}: {LOADERS[name]}" for name in names)]
    sections.append(aligned(table(pairs, _columns())))
    if result["overheads"]:
        sections.append(f"overlap over synthetic:\n{aligned(overhead_rows(result))}")
    return "\n\n".join(sections)


def _columns() -> dict[str, Callable[[tuple[dict, int]], str]]:
    """Return the columns of a table with a row for each point and epoch."""

    def text(name: str, form: str, factor: float = 1) -> Callable[[tuple[dict, int]], str]:
        def cell(pair: tuple[dict, int]) -> str:
            value = pair[0]["summary"][pair[1]][name]
            value = value["median"] if isinstance(value, dict) else value
            return "-" if value is None else form.format(value * factor)

        return cell

    def most(pair: tuple[dict, int]) -> str:
        reads = [node for run in pair[0]["runs"] for node in run["reads"] or ()]
        return str(max((node["most_opens"] or 0 for node in reads), default=0) or "-")

    return {
        "loader": lambda pair: pair[0]["loader"],
        "nodes x ranks": lambda pair: _size(pair[0]),
        "readers": lambda pair: str(pair[0]["n_readers"]),
        "epoch": lambda pair: str(pair[1] + 1),
        "seconds": text("seconds", "{:.2f}"),
        "[min, max]": lambda pair: extremes(pair[0]["summary"][pair[1]]["seconds"]),
        "images/s": text("images_per_second", "{:.0f}"),
        "waiting": text("wait_share", "{:.1%}"),
        "worst rank": text("worst_wait_share", "{:.1%}"),
        "staged": text("staged_share", "{:.1%}"),
        "files read/node": text("node_opens", "{:g}"),
        "MB/node": text("node_bytes", "{:.1f}", 1e-6),
        "of a file": most,
        "worker CPU ms/image": text("worker_cpu_seconds_per_image", "{:.2f}", 1e3),
    }


def overhead_rows(result: dict) -> list[list[str]]:
    """Return how much longer ours took than with data in memory, for each size."""
    names = ("all_epochs", "after_the_first", "cpu_time")
    rows = [["nodes x ranks", *(f"{name.replace('_', ' ')} [min, max]" for name in names)]]
    for size, found in result["overheads"].items():
        cells = [[f"{found[n][key]:+.1%}" for key in ("median", "min", "max")] for n in names]
        rows.append([size, *(f"{middle} [{low}, {high}]" for middle, low, high in cells)])
    return rows


def words_of(n_nodes: int, n_ranks: int) -> str:
    """Return nodes and ranks in words."""
    ranks = f"{n_ranks} rank" + "s" * (n_ranks > 1)
    return ranks if n_nodes == 1 else f"{n_nodes} nodes, {ranks} each"


def training_rows(result: dict) -> list[list[str]]:
    """Return a row for each loader, with seconds and share of waiting of each epoch and size."""
    points = result["points"]
    sizes = sorted({(point["n_nodes"], point["n_ranks"]) for point in points})
    found = {(p["loader"], p["n_nodes"], p["n_ranks"]): p["summary"] for p in points}
    numbers = range(len(points[0]["summary"]))
    rows = [["seconds of an epoch (waiting)"]]
    rows[0] += [f"{words_of(*size)}, epoch {number + 1}" for size in sizes for number in numbers]
    for loader in [name for name in LOADERS if any(key[0] == name for key in found)]:
        cells = []
        for size in sizes:
            for epoch in found.get((loader, *size), [None] * len(numbers)):
                time = epoch and f"{epoch['seconds']['median']:.1f} ({epoch['wait_share']:.0%})"
                cells.append(time or "-")
        rows.append([LOADERS[loader], *cells])
    return rows


def node_read_rows(result: dict) -> list[list[str]]:
    """Return what each node read from the store in the first run of each point."""
    rows = [["loader", "node", "opens", "different files", "of any one file, at most"]]
    for point in result["points"]:
        for reads in point["runs"][0]["reads"] or ():
            counts = (sum(reads["epoch_opens"]), reads["files"], reads["most_opens"])
            rows.append([LOADERS[point["loader"]], reads["node"], *map(str, counts)])
    return rows
