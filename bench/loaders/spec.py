"""What one run of one loader is asked to do, and what it reports, which is JSON."""

from dataclasses import dataclass

import numpy as np

from bench.loaders.files import read_pairs

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
    "overlap-torch-importing": "overlapiter.torch.DataLoader, slow store, data set imports PyTorch",
    "dali": "NVIDIA DALI's CPU pipeline on the slow store; worker processes of its own read",
    "dali-files": "NVIDIA DALI with its own reader of files",
    "spdl": "Meta's SPDL on the slow store; its threads read and decode",
    "overlap-torch-staged": "overlapiter.torch.DataLoader, everything staged before",
    "floor": "plain loops over dataset[i], one for each core, local disk",
    "ceiling": "plain loops beside 64 threads that read every file of the slow store once",
}
#: Those that read the local disk; the others read the slow store.
OF_LOCAL_DISK = (
    "overlap-local", "overlap-from-local", "fast", "torch-local", "floor", "local", "synthetic"
)  # fmt: skip
#: What is not installed with the benchmarks, as it is imported.
PACKAGES = {"dali": "nvidia.dali", "dali-files": "nvidia.dali", "spdl": "spdl.pipeline"}


def package_of(loader: str) -> str:
    """Return the package that a loader needs, as it is imported."""
    return "torch.utils.data" if "torch" in loader else PACKAGES.get(loader, "chainer")


@dataclass(frozen=True)
class RunSpec:
    """One run, which ends after ``n_batches``, ``n_epochs`` or ``seconds`` if they are not 0."""

    loader: str  # one of LOADERS
    pairs: str  # path of the file of ``path label`` lines
    n_examples: int  # how many of these lines are the data set; if more, they are repeated
    root: str  # what the paths are relative to, in the slow store
    staging: str  # for staged files or copies; empty at the start, but for overlap-staged
    is_decoding: bool = True  # whether examples are images, else the beginnings of files
    # Of the examples: by the seed, the loader's "own", "ascending"; of ranks see ``loaders.ranks``.
    order: str = "fixed"
    batch_size: int = 32
    n_batches: int = 0
    n_epochs: int = 0
    seconds: float = 0.0  # after the first mini-batch
    n_prefetchers: int | None = None  # processes; None for the default, as for reads_in_flight
    n_readers: int = 2
    reads_in_flight: int | None = None
    capacity: int | None = None  # bytes that may be staged; None for no limit
    mount: str = "emulated"  # makes root slow in open; a "fuse" mount, or "given" as it is
    local_root: str = ""  # the same on the local disk; empty if the root is there and made slow
    open_seconds: float = 0.010
    stat_seconds: float = 0.0  # what a stat or a look-up of a name waits in a mount
    bytes_per_second: float = 100e6
    # Of the data set, what another process reads from the store in each epoch after the first,
    # which ends when that has been done, too.
    beside_fraction: float = 0.0
    has_peers: bool = False  # whether the nodes of a job give each other what they have staged
    compute_seconds: float = 0.0  # sleep after each mini-batch, in place of training
    seed: int = 0

    @property
    def is_local(self) -> bool:
        """Whether the examples are read from the local disk."""
        return self.loader in (*OF_LOCAL_DISK, "ceiling")

    @property
    def local(self) -> str:
        """The root on the local disk."""
        return self.local_root or self.root

    @property
    def kind_of_store(self) -> str:
        """What makes the root slow, see ``mount``; the local disk is taken as it is."""
        return "given" if self.loader in OF_LOCAL_DISK else self.mount

    def indices(self) -> np.ndarray:
        """Return the indices of all examples of a run in a fixed order, int64."""
        shuffled = np.random.RandomState(self.seed).permutation(self.n_examples)
        return shuffled[: self.n_batches * self.batch_size]

    def batches(self) -> list[list[int]]:
        """Return the same, mini-batch by mini-batch."""
        return self.indices().reshape(self.n_batches, self.batch_size).tolist()

    def examples(self) -> list[tuple[str, int]]:
        """Return path and label of every example."""
        pairs = read_pairs(self.pairs, self.n_examples)
        return [pairs[number % len(pairs)] for number in range(self.n_examples)]

    def paths(self) -> list[str]:
        """Return the files of the run, relative to its root, in the order of delivery if fixed."""
        pairs = read_pairs(self.pairs, self.n_examples)
        if self.order == "fixed":
            return [pairs[index][0] for index in self.indices()]
        if self.order == "ascending":
            pairs = pairs[: self.n_batches * self.batch_size]
        return [path for path, _ in pairs]


#: What a run reports that does not measure these; see bench/results/README.md for all of it.
NOT_MEASURED: dict[str, object] = {
    "store_opens": None, "store_bytes": None, "private_bytes": {}, "statistics": {},
    "waits_seconds": [], "epochs": [], "reads_in_flight": [],
}  # fmt: skip


def rates(start: float, first: float, end: float, n_images: int) -> dict[str, float]:
    """Return what every run reports, by when its first and its last mini-batch were there."""
    found = {"wall_seconds": end - start, "first_batch_seconds": first - start}
    return {**found, "n_images": n_images, "images_per_second": n_images / (end - start)}
