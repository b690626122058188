"""What one run of one loader is asked to do, and what it reports; both are JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

LOADERS = ("overlap", "slow", "fast", "copy", "floor", "overlap-staged", "torch")
#: More of them, which ``bench.pipeline`` has.
PIPELINE_LOADERS = ("overlap-local", "overlap-from-local", "ceiling")
#: Those that read the slow store; the others read the local disk.
LOADERS_OF_STORE = ("overlap", "overlap-staged", "slow", "copy", "torch", "ceiling")
#: What the slow store is: emulated in ``open``, a mount of a directory, or slow by itself.
MOUNTS = ("emulated", "fuse", "given")

#: What each name of a loader means, for tables and figures.
LOADER_MEANINGS = {
    "overlap": "OverlapIterator on the slow store, nothing staged before",
    "slow": "MultiprocessIterator on the slow store",
    "fast": "MultiprocessIterator on the local disk",
    "copy": "copy all files of these mini-batches, then MultiprocessIterator on the copies",
    "floor": "plain loop in one process per core, local files, no loader",
    "overlap-staged": "OverlapIterator with everything staged before",
    "torch": "torch.utils.data.DataLoader on the slow store",
    "overlap-local": "OverlapIterator without staging, local files",
    "overlap-from-local": "OverlapIterator that stages from the local disk, nothing staged before",
    "ceiling": "the floor beside 64 threads of one more process that read the slow store",
}

#: Mini-batches that are kept during a run and compared byte for byte after the clock stopped.
KEPT_POSITIONS = (0, 10, 50, 200, 999)


@dataclass(frozen=True)
class RunSpec:
    """One run.

    Attributes:
        loader: One of :data:`LOADERS` or :data:`PIPELINE_LOADERS`.
        pairs: Path of the file of ``path label`` lines.
        n_examples: How many of these lines are the data set.
        root: What the paths are relative to, for this loader: the slow or the local directory.
        staging: Directory for staged files or copies; empty at the start, but for overlap-staged.
        batch_size: Examples in a mini-batch.
        n_batches: Mini-batches to deliver.
        n_prefetchers: Prefetcher processes, for loaders that have any; None for the default.
        n_readers: File reader processes.
        n_prefetch: The argument of that name of the iterators.
        mount: One of :data:`MOUNTS`: what makes ``root`` slow, for loaders of a store.
        mount_point: Where a mount is made; the same for all runs over one staging directory.
        slow_root: Of the ceiling, where the store is ``given``: its root; ``root`` is local.
        open_seconds: Latency of the store that is emulated or mounted.
        stat_seconds: What a ``stat`` or a look-up of a name waits in a mount.
        bytes_per_second: Bandwidth of the store that is emulated or mounted.
        compute_seconds: Sleep after each mini-batch, in place of training.
        copy_streams: Files in flight while copying everything.
        seed: Seed of the order.
    """

    loader: str
    pairs: str
    n_examples: int
    root: str
    staging: str
    batch_size: int = 32
    n_batches: int = 1000
    n_prefetchers: int | None = 4
    n_readers: int = 2
    n_prefetch: int = 1
    mount: str = "emulated"
    mount_point: str = ""
    slow_root: str = ""
    open_seconds: float = 0.010
    stat_seconds: float = 0.0
    bytes_per_second: float = 100e6
    compute_seconds: float = 0.0
    copy_streams: int = 16
    seed: int = 0

    def order(self) -> np.ndarray:
        """Return the indices of all examples of the run, int64, in the order of delivery."""
        shuffled = np.random.RandomState(self.seed).permutation(self.n_examples)
        return shuffled[: self.n_batches * self.batch_size]

    def paths(self) -> list[str]:
        """Return the files of the run, relative to its root, in the order of delivery."""
        pairs = read_pairs(self.pairs, self.n_examples)
        return [pairs[index][0] for index in self.order()]


def read_pairs(path: str, count: int) -> list[tuple[str, int]]:
    """Return the first ``count`` pairs of a file of ``path label`` lines."""
    pairs = []
    with open(path) as file:
        for line, _ in zip(file, range(count), strict=False):
            name, label = line.rsplit(maxsplit=1)
            pairs.append((name, int(label)))
    return pairs


@dataclass(frozen=True)
class Parts:
    """Mean seconds per file reader process: the four parts that a reader's time has.

    Attributes:
        initialize: Start of the run until the reader begins its first wait for an index list.
        dequeue: Waiting for index lists.
        fetch: Inside ``dataset[i]``: reading and decoding.
        others: The rest of its time until the last mini-batch was delivered.
    """

    initialize: float
    dequeue: float
    fetch: float
    others: float

    @property
    def total(self) -> float:
        """The whole time of the mean reader in seconds."""
        return self.initialize + self.dequeue + self.fetch + self.others


@dataclass
class RunResult:
    """What one run measured.

    Attributes:
        wall_seconds: Constructor to the delivery of the last mini-batch.
        first_batch_seconds: Constructor to the delivery of the first mini-batch.
        rate_after_first: Images per second from then on.
        finalize_seconds: Ending all processes.
        trainer_cpu_seconds: CPU time of the trainer process, all its threads, within the wall.
        waits_seconds: Time inside ``next()`` of each mini-batch; empty for the floor.
        parts: Mean per file reader process; None where the loader cannot be observed.
        store_opens: Files that crossed the slow store; None where nothing counts them.
        store_bytes: Bytes that crossed it.
        cpu: By kind of process, what :func:`bench.cpu.cpu_by_kind` finds before ``finalize``, and
            the ``seconds`` of the trainer.
        fingerprints: Cheap checksum of each mini-batch.
        checksums: CRC-32 of all bytes of the mini-batches at :data:`KEPT_POSITIONS`.
        statistics: What the loader itself reports, if it does.
    """

    wall_seconds: float
    first_batch_seconds: float
    finalize_seconds: float
    trainer_cpu_seconds: float
    waits_seconds: list[float] = field(default_factory=list)
    parts: Parts | None = None
    store_opens: int | None = None
    store_bytes: int | None = None
    rate_after_first: float = 0.0
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)
    fingerprints: list[int] = field(default_factory=list)
    checksums: dict[int, int] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, found: dict) -> RunResult:
        """Return the result that ``dataclasses.asdict`` and JSON have made a dict of."""
        parts = found["parts"] and Parts(**found["parts"])
        checksums = {int(key): value for key, value in found["checksums"].items()}
        return cls(**{**found, "parts": parts, "checksums": checksums})


class FixedOrder:
    """An order sampler that gives the same order for every epoch.

    Args:
        indices: The order, int64; it may have fewer indices than the data set.
    """

    def __init__(self, indices: np.ndarray) -> None:
        self.indices = indices

    def __call__(self, *_state: object) -> np.ndarray:
        """Return the order, whatever the current order and position are."""
        return self.indices
