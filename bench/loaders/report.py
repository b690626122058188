"""Loaders that build the same mini-batches: rates, CPU, faults."""

from statistics import median

from bench.harness.isolated import name_of
from bench.harness.tables import median_of, number_of, table
from bench.loaders.spec import LOADERS

#: Kinds of processes whose CPU counts most, in this order.
_KINDS = ("prefetcher", "supervisor", "reader", "trainer", "loop")
_RATES = {
    "images/s": "{images_per_second:,.0f}",
    "min to max": "{images_per_second.min:,.0f} to {images_per_second.max:,.0f}",
}
#: The loaders that a newcomer asks for: ours, and the framework's own.
_CHIEF = (
    "overlap", "overlap-staged", "slow", "fast",
    "overlap-torch", "overlap-torch-staged", "torch", "torch-local",
)  # fmt: skip


def ratio(point: dict, points: list[dict], loader: str) -> float:
    """Return how many times as fast as ``loader`` a point is, the median over the repeats.

    It is compared with the one that had the same number of readers, if there is one.
    """
    found = [other for other in points if other["loader"] == loader]
    other = next((p for p in found if p["n_readers"] == point["n_readers"]), found[0])
    return median(map(number_of("images_per_second"), point["runs"], other["runs"]))


def cpu_us(run: dict, *kinds: str) -> float:
    """Return what the processes of some kinds, or else of all, used for an image."""
    used = (run["cpu"].get(kind, {}).get("seconds", 0.0) for kind in kinds or run["cpu"])
    return sum(used) / run["n_images"] * 1e6


def staging_us(run: dict) -> float:
    """Return what staging one file cost the prefetchers."""
    return run["cpu"]["prefetcher"]["seconds"] / max(run["statistics"]["files_staged"], 1) * 1e6


def less_cpu(run: dict, limit: dict) -> float:
    """Return the CPU of all processes for an image of ``limit``, as a share of that of ``run``."""
    return cpu_us(limit) / cpu_us(run)


def meaning_of(point: dict) -> str:
    """Return what a point is, in words."""
    return LOADERS[point["loader"]] + point.get("note", "")


def faults(result: dict) -> list[str]:
    """Return which loaders delivered other examples than the reference, and which failed."""
    different = result["verified"]["different"].items()
    return [
        *(f"DIFFERENT EXAMPLES by {name}: {positions}" for name, positions in different),
        *(f"NO RESULT of {name}: {error}" for name, error in result["failed"].items()),
    ]


def verified(points: list[dict]) -> dict[str, object]:
    """Compare the mini-batches of every run with those of the floor, or of the runs before it.

    Returned are how many were compared, and the positions of others in each run; and the same in
    words if all are alike. The fingerprints, most of the file, are removed from the points.
    """
    expected, compared, different = [], 0, {}
    for point in sorted(points, key=lambda point: point.get("loader") != "floor"):
        for number, run in enumerate(point["runs"]):
            found = run.pop("fingerprints")
            pairs = list(zip(expected, found, strict=False))
            compared += len(pairs)
            if wrong := [at for at, (one, other) in enumerate(pairs) if one != other]:
                different[f"{point['loader']}, run {number}"] = wrong
            expected += found[len(expected) :]
    words = f"{compared} mini-batches compared, all of them alike"
    words = words if compared and not different else ""
    return {"verified": {"batches": compared, "different": different}, "examples": words}


def name_rows(result: dict) -> list[list[str]]:
    """Return what the short names of the points stand for."""
    meanings = {name_of(point): meaning_of(point) for point in result["points"]}
    return [["name", "what it is"], *map(list, meanings.items())]


def cpu_rows(result: dict) -> list[list[str]]:
    """Return what each kind of process used of the CPU for an image, in microseconds."""
    found = {kind for point in result["points"] for run in point["runs"] for kind in run["cpu"]}
    kinds = [*(kind for kind in _KINDS if kind in found), *sorted(found - set(_KINDS))]
    rows = [["CPU for an image", *(f"{kind}, µs" for kind in kinds), "all, µs"]]
    for point in result["points"]:
        by_kind = [median(cpu_us(run, kind) for run in point["runs"]) for kind in kinds]
        cells = [f"{number:.0f}" if number else "-" for number in (*by_kind, sum(by_kind))]
        rows.append([name_of(point), *cells])
    return rows


def rate_rows(result: dict) -> list[list[str]]:
    """Return a row for each point: its rate beside those of the floor and the stock iterator.

    What did not run has no column, and the readers have one only where their numbers differ.
    """
    points = result["points"]
    columns = {"loader": meaning_of, "mini-batches": "{n_batches}", **_RATES}
    columns["after the first"] = "{rate_after_first:,.0f}"
    heads = {"floor": ("of the floor", 2), "slow": ("times slow", 1), "fast": ("times fast", 2)}
    loaders = [point["loader"] for point in points]
    if loaders.count("torch") == 1:  # else it is compared over its workers, by the targets
        heads |= {"torch": ("times torch", 1), "torch-local": ("times torch-local", 2)}
    for loader, (head, digits) in heads.items():
        if loader in loaders:
            columns[head] = lambda p, of=loader, n=digits: f"{ratio(p, points, of):.{n}f}"
    columns["first, s"] = "{first_batch_seconds:.2f}"
    if len({point["n_readers"] for point in points}) > 1:
        columns["readers"] = "{n_readers}"
    return table(points, columns)


def chief_rows(result: dict) -> list[list[str]]:
    """Return the rates of our loader, cold and staged, and of the framework's, slow and local.

    Of several numbers of readers there are the first one and the fastest.
    """
    chosen = []
    for loader in _CHIEF:
        points = [p for p in result["points"] if p["loader"] == loader and not p.get("note")]
        fastest = max(points, key=lambda p: median_of(p, "images_per_second"), default=None)
        chosen += [point for point in points if point is points[0] or point is fastest]
    last = {"first mini-batch, s": "{first_batch_seconds:.2f}", "readers": "{n_readers}"}
    return table(chosen, {"loader": meaning_of, **_RATES, **last})


#: Beside the rates, in which the points have their long names.
TABLES = {"names": name_rows, "cpu": cpu_rows}
