"""How long a loader takes to start, and how much memory each of its processes has of its own."""

from functools import partial
from statistics import median

from bench.harness.options import option
from bench.loaders.sources import MountOptions, run_points

_KINDS = ("reader", "prefetcher", "supervisor", "trainer")


class Options(MountOptions):
    files: int = option(8_000, "different ones, of the short list", quick=64)
    lengths: list[int] = option([8_000, 1_280_000], "of the lists of files", quick=[100])
    readers: list[int] = option([2, 4, 8, 16], "file readers", quick=[3])
    batches: int = option(100, "before memory is measured", quick=8)


def measure(options: Options) -> dict:
    points = [
        # The stock iterator is slow on the slow store: a quarter has to do.
        {"loader": loader, "n_readers": n_readers, "n_examples": n_examples,
         "n_batches": options.batches if loader == "overlap" else max(options.batches // 4, 1)}
        for n_examples in options.lengths for n_readers in options.readers
        for loader in ("overlap", "slow")
    ]  # fmt: skip
    return run_points(options, points, options.files, order="own")


def _megabytes(kind: str, point: dict) -> str:
    sizes = [size for run in point["runs"] for size in run["private_bytes"].get(kind, ())]
    return f"{median(sizes) / 1e6:.1f}" if sizes else "-"


_COLUMNS = {
    "loader": "{loader}", "files": "{n_examples:,}", "readers": "{n_readers}",
    "first mini-batch, s": "{first_batch_seconds:.2f}",
    "[min, max]": "[{first_batch_seconds.min:.2f}, {first_batch_seconds.max:.2f}]",
    "finalize, s": "{finalize_seconds:.2f}",
    **{f"MB of a {kind}": partial(_megabytes, kind) for kind in _KINDS}
}  # fmt: skip
TABLES = {"startup": _COLUMNS}
