"""What one run of data-parallel training is asked to do, and what its ranks report; all JSON."""

from __future__ import annotations

from dataclasses import dataclass

LOADERS = ("overlap", "slow", "local", "synthetic")

#: What each name of a loader means, for tables and figures.
LOADER_MEANINGS = {
    "overlap": "OverlapIterator on the slow store, nothing staged before",
    "slow": "MultiprocessIterator on the slow store",
    "local": "MultiprocessIterator on the local disk, all files there before",
    "synthetic": "prepared mini-batches in memory, no loader",
}
ORDERS = ("global", "shards")


@dataclass(frozen=True)
class TrainingSpec:
    """One run: the same for all its ranks.

    Attributes:
        loader: One of :data:`LOADERS`.
        model: Name of one of ``bench.training_models``.
        pairs: Path of the file of ``path label`` lines.
        n_examples: How many of these lines are the data set.
        root: What the paths are relative to, on the slow store.
        local_root: The same on the local disk.
        staging: Directory on the local disk, below which each node has one of its own.
        store: Path of a pickled ``bench.slowstore.SlowStore``; None where the store is real.
        batch_size: Examples in a mini-batch of one rank.
        n_epochs: Epochs to train.
        n_readers: File reader processes of one rank.
        order: One of :data:`ORDERS`: a fresh shuffle over all ranks in each epoch, or the shards of
            ``chainermn.scatter_dataset``, each shuffled by itself.
        seed: Seed of the orders and of the weights.
        communicator: ChainerMN's name of it; a rank trains on a GPU of its own unless ``naive``.
    """

    loader: str
    model: str
    pairs: str
    n_examples: int
    root: str
    local_root: str
    staging: str
    store: str | None
    batch_size: int
    n_epochs: int
    n_readers: int
    order: str
    seed: int
    communicator: str


@dataclass(frozen=True)
class EpochResult:
    """What one rank measured in one epoch.

    Attributes:
        start, end: When it began and ended, on the monotonic clock of the machine; the first one
            begins before the iterator is made.
        wait_seconds: Inside ``next()``; in the first epoch, inside the constructor as well.
        n_images: Examples that the rank trained on.
        staged_share: The part of the opens of source files that went to a staged copy; None for
            other loaders.
        files_staged: Files that prefetchers of this rank have copied meanwhile; None likewise.
        bytes_staged: Bytes that they have copied; None likewise.
        loss: Mean over the mini-batches of this rank.
        trainer_cpu_seconds: CPU time of the rank itself, in which it may have waited for others:
            MPI polls.
        workers_cpu_seconds: CPU time of all processes that the rank has started.
    """

    start: float
    end: float
    wait_seconds: float
    n_images: int
    staged_share: float | None
    files_staged: int | None
    bytes_staged: int | None
    loss: float
    trainer_cpu_seconds: float
    workers_cpu_seconds: float

    @property
    def seconds(self) -> float:
        """How long the epoch took."""
        return self.end - self.start


@dataclass(frozen=True)
class RankResult:
    """What one rank reports of a run.

    Attributes:
        rank: Its rank.
        node: Name of its node.
        start_seconds: From before the iterator was made until the first mini-batch was there.
        epochs: What it measured.
        pids: The rank and its worker processes.
    """

    rank: int
    node: str
    start_seconds: float
    epochs: list[EpochResult]
    pids: list[int]

    @classmethod
    def from_dict(cls, found: dict) -> RankResult:
        """Return the result that ``dataclasses.asdict`` and JSON have made a dict of."""
        return cls(**{**found, "epochs": [EpochResult(**epoch) for epoch in found["epochs"]]})
