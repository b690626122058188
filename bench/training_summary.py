"""Medians of the runs of data-parallel training, and the table that is printed."""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING

from bench.summary import aligned, spread
from bench.training_spec import LOADER_MEANINGS, EpochResult, RankResult

if TYPE_CHECKING:
    from collections.abc import Sequence


def summarize(runs: Sequence[dict]) -> list[dict]:
    """Return for each epoch what the runs of one point come to.

    Args:
        runs: Of each, ``ranks`` as the ranks reported them, and ``reads`` of each node, or None.

    Returns:
        ``seconds`` and ``images_per_second`` of all ranks together, spreads over the runs; the
        median over runs of ``wait_share``, the mean over ranks, of ``worst_wait_share``, and of
        ``staged_share``, and of ``worker_cpu_seconds_per_image``; and ``node_opens`` and
        ``node_bytes``, medians of the mean node.
    """
    by_run = [[RankResult.from_dict(rank) for rank in run["ranks"]] for run in runs]
    n_epochs = len(by_run[0][0].epochs)
    summaries = []
    for number in range(n_epochs):
        epochs = [[rank.epochs[number] for rank in ranks] for ranks in by_run]
        summary = _summary(epochs)
        for name in ("opens", "bytes"):
            summary[f"node_{name}"] = _median_of_nodes(runs, f"epoch_{name}", number)
        summaries.append(summary)
    return summaries


def _summary(epochs: Sequence[Sequence[EpochResult]]) -> dict:
    """Summarize one epoch: of each run, of each rank."""
    seconds = [_seconds(ranks) for ranks in epochs]
    images = [sum(epoch.n_images for epoch in ranks) for ranks in epochs]
    shares = [[epoch.wait_seconds / epoch.seconds for epoch in ranks] for ranks in epochs]
    staged = [[epoch.staged_share for epoch in ranks] for ranks in epochs]
    is_staging = staged[0][0] is not None
    return {
        "seconds": spread(seconds),
        "images_per_second": spread(n / s for n, s in zip(images, seconds, strict=True)),
        "wait_share": median(mean(ranks) for ranks in shares),
        "worst_wait_share": median(max(ranks) for ranks in shares),
        "staged_share": median(mean(ranks) for ranks in staged) if is_staging else None,
        "worker_cpu_seconds_per_image": median(
            sum(epoch.workers_cpu_seconds for epoch in ranks) / n_images
            for ranks, n_images in zip(epochs, images, strict=True)
        ),
    }


def _seconds(ranks: Sequence[EpochResult]) -> float:
    """Return the time of an epoch: the mean over ranks, which all updates synchronize.

    Not from the first start to the last end: these are on the clocks of different machines.
    """
    return mean(epoch.seconds for epoch in ranks)


def _median_of_nodes(runs: Sequence[dict], name: str, number: int) -> float | None:
    if runs[0]["reads"] is None:
        return None
    return median(mean(node[name][number] for node in run["reads"]) for run in runs)


def overheads(points: Sequence[dict]) -> dict[str, dict]:
    """Return how much longer our runs took than those with data in memory, as a share.

    Runs of the same repeat are compared: the time of all epochs, that of all but the first, and
    the CPU time of ranks and workers, which a busy machine changes less; ranks that wait for
    others take CPU time, since MPI polls. The keys are like ``1 x 2``, nodes and ranks per node.
    """
    found = {}
    for point in points:
        for other in points:
            is_pair = point["loader"] == "overlap" and other["loader"] == "synthetic"
            if is_pair and _size(point) == _size(other):
                found[_size(point)] = _overhead(point["runs"], other["runs"])
    return found


def _overhead(ours: Sequence[dict], others: Sequence[dict]) -> dict[str, dict]:
    pairs = [(_totals(run), _totals(other)) for run, other in zip(ours, others, strict=True)]
    return {
        name: spread(run[name] / other[name] - 1 for run, other in pairs) for name in pairs[0][0]
    }


def _totals(run: dict) -> dict[str, float]:
    ranks = [RankResult.from_dict(rank).epochs for rank in run["ranks"]]
    return {
        "all_epochs": mean(sum(epoch.seconds for epoch in epochs) for epochs in ranks),
        "after_the_first": mean(sum(epoch.seconds for epoch in epochs[1:]) for epochs in ranks),
        "cpu_time": sum(
            epoch.trainer_cpu_seconds + epoch.workers_cpu_seconds
            for epochs in ranks
            for epoch in epochs
        ),
    }


def _size(point: dict) -> str:
    return f"{point['n_nodes']} x {point['n_ranks']}"


def table(result: dict) -> str:
    """Return everything that is printed at the end, as text."""
    options, machine = result["options"], result["machine"]
    head = [
        f"{options['epochs']} epochs of {result['data']}, mini-batches of {options['batch_size']}",
        f"model {options['model']!r}, order {options['order']!r}; {result['store']}",
        f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}; "
        f"median of {options['repeats']} interleaved runs [min, max]",
    ]
    loaders = [point["loader"] for point in result["points"]]
    meanings = [f"{name}: {text}" for name, text in LOADER_MEANINGS.items() if name in loaders]
    header = ["loader", "nodes x ranks", "readers", "epoch", "seconds", "[min, max]", "images/s"]
    header += ["waiting %", "worst rank %", "staged %", "files read/node", "MB/node", "of a file"]
    header += ["worker CPU ms/image"]
    rows = [header]
    for point in result["points"]:
        for epoch, summary in enumerate(point["summary"], 1):
            rows.append(_row(point, epoch, summary))
    sections = ["\n".join(head), "\n".join(meanings), aligned(rows)]
    for size, found in overheads(result["points"]).items():
        text = ", ".join(
            f"{found[name]['median']:+.1%} [{found[name]['min']:+.1%}, {found[name]['max']:+.1%}] "
            f"{name.replace('_', ' ')}"
            for name in found
        )
        sections.append(f"overlap over synthetic, {size}: {text}")
    return "\n\n".join(sections) + "\n"


def _row(point: dict, epoch: int, summary: dict) -> list[str]:
    seconds = summary["seconds"]
    return [
        point["loader"],
        _size(point),
        str(point["n_readers"]),
        str(epoch),
        f"{seconds['median']:.2f}",
        f"[{seconds['min']:.2f}, {seconds['max']:.2f}]",
        f"{summary['images_per_second']['median']:.0f}",
        f"{summary['wait_share']:.1%}",
        f"{summary['worst_wait_share']:.1%}",
        *(_number(summary["staged_share"], "{:.1%}"), _number(summary["node_opens"], "{:g}")),
        _number(summary["node_bytes"], "{:.1f}", 1e-6),
        _most_opens(point["runs"]),
        f"{summary['worker_cpu_seconds_per_image'] * 1e3:.2f}",
    ]


def _number(number: float | None, form: str, factor: float = 1) -> str:
    return "-" if number is None else form.format(number * factor)


def _most_opens(runs: Sequence[dict]) -> str:
    """Return how often a node read one file from the slow store in a whole run, at the most."""
    if runs[0]["reads"] is None or runs[0]["reads"][0]["most_opens"] is None:
        return "-"
    return str(max(node["most_opens"] for run in runs for node in run["reads"]))
