"""What one run of one loader is asked to do, and what it reports; both are JSON."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import numpy as np

from bench.harness.files import read_pairs

#: What each name of a loader means, for tables and figures.
LOADERS = {
    "overlap": "OverlapIterator on the slow store, nothing staged before",
    "overlap-staged": "OverlapIterator on the slow store, everything staged before",
    "overlap-local": "OverlapIterator without staging on the local disk",
    "overlap-from-local": "OverlapIterator that stages from the local disk, nothing staged before",
    "slow": "MultiprocessIterator on the slow store",
    "fast": "MultiprocessIterator on the local disk",
    "copy": "copy all files of these mini-batches, then MultiprocessIterator on the copies",
    "torch": "torch.utils.data.DataLoader on the slow store",
    "torch-local": "torch.utils.data.DataLoader on the local disk",
    "overlap-torch": "overlapiter.torch.DataLoader on the slow store, nothing staged before",
    "overlap-torch-importing": "the same with a data set that imports PyTorch, as the workers must",
    "dali": "NVIDIA DALI's CPU pipeline on the slow store; worker processes of its own read",
    "dali-files": "the same with DALI's own reader of files",
    "spdl": "Meta's SPDL on the slow store; its threads read and decode",
    "overlap-torch-staged": "overlapiter.torch.DataLoader, everything staged before",
    "floor": "plain loops over dataset[i], one for each core, local disk",
    "ceiling": "the same beside 64 threads that read every file of the slow store once",
}
#: Those that read the slow store; the others read the local disk.
OF_STORE = (
    *("overlap", "overlap-staged", "overlap-torch", "overlap-torch-staged"),
    *("overlap-torch-importing", "slow", "copy", "torch", "ceiling", "dali", "dali-files", "spdl"),
)
#: What is not installed with the benchmarks, as it is imported.
PACKAGES = {"dali": "nvidia.dali", "dali-files": "nvidia.dali", "spdl": "spdl.pipeline"}
#: Mini-batches that are kept during a run and compared byte for byte after the clock stopped.
KEPT_POSITIONS = (0, 10, 50, 200, 999)


@dataclass(frozen=True)
class RunSpec:
    """One run, which ends after ``n_batches``, ``n_epochs`` or ``seconds`` if they are not 0.

    Attributes:
        loader: One of :data:`LOADERS`.
        pairs: Path of the file of ``path label`` lines.
        n_examples: How many of these lines are the data set; if more, they are repeated.
        root: What the paths are relative to, for this loader: the slow or the local directory.
        staging: Directory for staged files or copies; empty at the start, but for overlap-staged.
        is_decoding: Whether examples are images, else the beginnings of files.
        order: Of the examples: "fixed" by the seed, the loader's "own", or "ascending".
        seconds: After the first mini-batch.
        n_prefetchers: Prefetcher processes; None for the default, as for reads_in_flight.
        capacity: Bytes that may be staged; None for no limit.
        mount: Makes ``root`` slow: "emulated" in ``open``, a "fuse" mount, or "given" as it is.
        mount_point: Where a mount is made; the same for all runs over one staging directory.
        slow_root: Of the ceiling: the root of the store; ``root`` is local.
        stat_seconds: What a ``stat`` or a look-up of a name waits in a mount.
        beside_fraction: Of the data set, what another process reads from the store in each epoch
            after the first, which ends when that has been done, too.
        compute_seconds: Sleep after each mini-batch, in place of training.
        copy_streams: Files in flight while copying everything.
        measures_memory: Whether ``private_bytes`` are reported.
    """

    loader: str
    pairs: str
    n_examples: int
    root: str
    staging: str
    is_decoding: bool = True
    order: str = "fixed"
    batch_size: int = 32
    n_batches: int = 0
    n_epochs: int = 0
    seconds: float = 0.0
    n_prefetchers: int | None = None
    n_readers: int = 2
    n_prefetch: int = 1
    reads_in_flight: int | None = None
    capacity: int | None = None
    mount: str = "emulated"
    mount_point: str = ""
    slow_root: str = ""
    open_seconds: float = 0.010
    stat_seconds: float = 0.0
    bytes_per_second: float = 100e6
    beside_fraction: float = 0.0
    compute_seconds: float = 0.0
    copy_streams: int = 64
    seed: int = 0
    measures_memory: bool = False

    def indices(self) -> np.ndarray:
        """Return the indices of all examples of a run in a fixed order, int64."""
        shuffled = np.random.RandomState(self.seed).permutation(self.n_examples)
        return shuffled[: self.n_batches * self.batch_size]

    def examples(self) -> list[tuple[str, int]]:
        """Return path and label of every example."""
        pairs = read_pairs(self.pairs, self.n_examples)
        return list(itertools.islice(itertools.cycle(pairs), self.n_examples))

    def paths(self) -> list[str]:
        """Return the files of the run, relative to its root, in the order of delivery if fixed."""
        pairs = read_pairs(self.pairs, self.n_examples)
        if self.order == "fixed":
            return [pairs[index][0] for index in self.indices()]
        if self.order == "ascending":
            pairs = pairs[: self.n_batches * self.batch_size]
        return [path for path, _ in pairs]


#: The parts of a reader's time, and what each is called in what is published.
PARTS = {
    "initialize": "initialize",
    "dequeue": "dequeue an index list",
    "fetch": "fetch data",
    "others": "others",
}


@dataclass
class RunResult:
    """What one run measured, in seconds.

    Attributes:
        wall_seconds: Constructor to the delivery of the last mini-batch.
        first_batch_seconds: Constructor to the delivery of the first mini-batch.
        n_images: How many were delivered.
        finalize_seconds: Ending all processes.
        trainer_cpu_seconds: CPU time of the trainer process, all its threads, within the wall.
        constructor_seconds: In the constructor alone.
        waits_seconds: Time inside ``next()`` of each mini-batch; empty for the floor.
        parts: Seconds of the mean file reader process, by :data:`PARTS`: until it begins to wait
            for its first index list, waiting for one, inside ``dataset[i]``, and the rest until the
            last mini-batch was delivered; None where the loader cannot be observed.
        store_opens: Files that crossed the slow store; None where nothing counts them.
        store_bytes: Bytes that crossed it.
        images_per_second: All included.
        rate_after_first: Images per second from the first mini-batch on.
        epochs: ``seconds``, ``opens`` and ``bytes`` of each, the first one with the start, with
            what is read ahead of the trainer meanwhile.
        reads_in_flight: What was allowed at each mini-batch of a run of some seconds.
        private_bytes: Memory of each process by kind that it shares with no other.
        cpu: By kind of process, what :func:`bench.harness.cpu.cpu_by_kind` finds before
            ``finalize``, and the ``seconds`` of the trainer.
        fingerprints: Cheap checksum of each mini-batch.
        checksums: CRC-32 of all bytes of the mini-batches at :data:`KEPT_POSITIONS`.
        statistics: What the loader itself reports, if it does.
    """

    wall_seconds: float = 0.0
    first_batch_seconds: float = 0.0
    n_images: int = 0
    finalize_seconds: float = 0.0
    trainer_cpu_seconds: float = 0.0
    constructor_seconds: float = 0.0
    waits_seconds: list[float] = field(default_factory=list)
    parts: dict[str, float] | None = None
    store_opens: int | None = None
    store_bytes: int | None = None
    images_per_second: float = 0.0
    rate_after_first: float = 0.0
    epochs: list[dict[str, float]] = field(default_factory=list)
    reads_in_flight: list[int] = field(default_factory=list)
    private_bytes: dict[str, list[int]] = field(default_factory=dict)
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)
    fingerprints: list[int] = field(default_factory=list)
    checksums: dict[int, int] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict:
        """Return it as JSON has it, with its rate."""
        self.images_per_second = self.n_images / self.wall_seconds
        return dataclasses.asdict(self)


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
