"""Which node read what from the emulated slow store, and when."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.slowledger import OpenRecord
    from bench.training_spec import RankResult


def reads_by_node(records: Iterable[OpenRecord], ranks: Sequence[RankResult]) -> list[dict]:
    """Return what each node read, in the order of their first ranks.

    Returns:
        Dicts of ``node``; ``epoch_opens`` and ``epoch_bytes``, lists over epochs and, as the last
        entry, what was read ahead beyond them; ``files``, how many different ones; and
        ``most_opens``, of any one file.

    Raises:
        ValueError: An open was by no process of any rank.
    """
    node_of = {pid: rank.node for rank in ranks for pid in rank.pids}
    nodes = list(dict.fromkeys(rank.node for rank in ranks))
    ends = {node: _ends([rank for rank in ranks if rank.node == node]) for node in nodes}
    opens = {node: [0] * (len(ends[node]) + 1) for node in nodes}
    sizes = {node: [0] * (len(ends[node]) + 1) for node in nodes}
    by_path: dict[str, Counter[str]] = {node: Counter() for node in nodes}
    for record in records:
        if record.pid not in node_of:
            raise ValueError(f"process {record.pid}, which read {record.path}, is of no rank")
        node = node_of[record.pid]
        epoch = sum(record.ready_seconds > end for end in ends[node])
        opens[node][epoch] += 1
        sizes[node][epoch] += record.size_bytes
        by_path[node][record.path] += 1
    return [
        {
            "node": node,
            "epoch_opens": opens[node],
            "epoch_bytes": sizes[node],
            "files": len(by_path[node]),
            "most_opens": max(by_path[node].values(), default=0),
        }
        for node in nodes
    ]


def staged_by_node(ranks: Sequence[RankResult]) -> list[dict] | None:
    """Return the same of what the ranks say that they have staged; None if they have not."""
    if ranks[0].epochs[0].files_staged is None:
        return None
    nodes = dict.fromkeys(rank.node for rank in ranks)
    found = []
    for node in nodes:
        by_epoch = list(zip(*(rank.epochs for rank in ranks if rank.node == node), strict=True))
        found.append(
            {
                "node": node,
                "epoch_opens": [sum(epoch.files_staged for epoch in each) for each in by_epoch],
                "epoch_bytes": [sum(epoch.bytes_staged for epoch in each) for each in by_epoch],
                "files": None,
                "most_opens": None,
            }
        )
    return found


def _ends(ranks: Sequence[RankResult]) -> list[float]:
    """Return when the last of these ranks ended each epoch."""
    by_epoch = zip(*(rank.epochs for rank in ranks), strict=True)
    return [max(epoch.end for epoch in epochs) for epochs in by_epoch]
