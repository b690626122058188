"""Where the time of the pipeline goes: cold, staged and local, beside the opponents and the limits.

python -m bench pipeline --mount fuse            # a real mount with a delay, some 8 minutes
python -m bench pipeline --mount emulated        # a delay inside open, without privileges
python -m bench pipeline --source /lustre/images --pairs /lustre/images/pairs.txt
"""

from bench.harness.options import OptionsError, option
from bench.harness.tables import Wanted
from bench.loaders import report
from bench.loaders.sources import MountOptions, run_points

#: By name: the loader, what differs from the usual run, and words for that.
LINES: dict[str, tuple[str, dict[str, object], str]] = {
    "cold": ("overlap", {}, ""),
    "staged": ("overlap-staged", {}, ""),
    "staged, slow stat": ("overlap-staged", {"stat_seconds": 0.001}, ", 1 ms per stat"),
    "local": ("overlap-local", {}, ""),
    "from local": ("overlap-from-local", {}, ""),
    "cold, 12 prefetchers": ("overlap", {"n_prefetchers": 12}, ", 12 prefetchers"),
    "cold, 16 readers": ("overlap", {"n_readers": 16}, ", 16 file readers"),
    "first of 16 and 12": ("overlap", {"n_prefetchers": 12, "n_readers": 16, "n_batches": 8},
        ", 16 file readers and 12 prefetchers, for its first mini-batch"),
    "stock, slow store": ("slow", {}, ""),
    "stock, local": ("fast", {}, ""),
    "copy first": ("copy", {}, ""),
    "loops": ("floor", {}, ""),
    "ceiling": ("ceiling", {}, ""),
}  # fmt: skip


class Options(MountOptions):
    batches: int = option(250, "mini-batches", quick=12)
    slow_batches: int = option(60, "of the slow", quick=4)
    readers: int = option(2, "file reader processes")
    lines: list[str] = option([], "some, separated by ';'", known=LINES, separator=";")

    def check(self) -> None:
        super().check()
        if self.batches < 2 or self.slow_batches < 2:
            raise OptionsError("--batches, --slow-batches: give at least 2: one alone has no rate")
        is_mount = self.mount == "fuse" and not self.source  # where a stat can be slow
        self.lines = self.lines or [name for name in LINES if is_mount or "stat" not in name]


def measure(options: Options) -> dict:
    most = {"slow": min(options.slow_batches, options.batches)}
    points = [
        {"name": name, "loader": loader, "note": note,
         "n_batches": most.get(loader, options.batches), **others}
        for name in options.lines for loader, others, note in [LINES[name]]
    ]  # fmt: skip
    n_examples, n_readers = options.batches * options.batch_size, options.readers
    return run_points(options, points, n_examples, n_readers=n_readers)


RATE, STEADY, FIRST = "images_per_second", "rate_after_first", "first_batch_seconds"


def _supervisor_us(run: dict) -> float:
    return report.cpu_us(run, "supervisor")


def _reader_beyond_us(run: dict, loops: dict) -> float:
    """Return what a reader used for an image beyond what the loops did."""
    return report.cpu_us(run, "reader") - report.cpu_us(loops, "loop")


TARGETS: tuple[Wanted, ...] = (
    ("prefetchers, a staged file, local source", "µs", 80, ("from local",), report.staging_us),
    ("prefetchers, a staged file, slow store", "µs", 140, ("cold",), report.staging_us),
    ("supervisor, an image, cold", "µs", 35, ("cold",), _supervisor_us),
    ("supervisor, an image, staged", "µs", 35, ("staged",), _supervisor_us),
    ("reader beyond dataset[i], staged", "µs", 10, ("staged", "loops"), _reader_beyond_us),
    ("reader beyond dataset[i], cold", "µs", 10, ("cold", "loops"), _reader_beyond_us),
    ("cold / ceiling, after the first", "", 0.85, ("cold", "ceiling"), STEADY),
    ("staged / loops, after the first", "", 0.95, ("staged", "loops"), STEADY),
    ("staged, slow stat / loops", "", None, ("staged, slow stat", "loops"), STEADY),
    ("local / loops, after the first", "", None, ("local", "loops"), STEADY),
    ("cold / ceiling, all included", "", None, ("cold", "ceiling"), RATE),
    ("staged / loops, all included", "", None, ("staged", "loops"), RATE),
    # On a busy machine, rates say little; where the cores are the limit, this says the same.
    ("cold / ceiling, by CPU of all", "", None, ("cold", "ceiling"), report.less_cpu),
    ("staged / loops, by CPU of all", "", None, ("staged", "loops"), report.less_cpu),
    ("cold / stock on the slow store", "", 15, ("cold", "stock, slow store"), RATE),
    ("cold / stock on the local disk", "", 2.2, ("cold", "stock, local"), RATE),
    ("12 prefetchers / default", "", 0.95, ("cold, 12 prefetchers", "cold"), RATE),
    ("16 readers / 2 readers", "", 0.9, ("cold, 16 readers", "cold"), RATE),
    ("16 / 2 readers, after the first", "", 0.9, ("cold, 16 readers", "cold"), STEADY),
    ("first mini-batch, 2 readers", "s", 0.45, ("cold",), FIRST),
    ("first, 16 readers, 12 prefetchers", "s", 0.45, ("first of 16 and 12",), FIRST),
)


TABLES = {"loaders": report.rate_rows, **report.TABLES}
faults = report.faults
