"""What was survived, and how fast, as tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from bench.harness.text import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Within this time a file reader that died is replaced; a stopped one is not dead yet.
NOTICE_LIMIT_SECONDS = 0.2
#: Mini-batches before anything is measured.
WARM_UP_BATCHES = 50
KINDS = ("reader", "prefetcher", "supervisor")
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGSTOP")


def is_limited(hit: dict) -> bool:
    """Return whether the limit holds for a hit: a reader died, and its supervisor lived on."""
    return hit["kind"] == "reader" and hit["signal"] != "SIGSTOP" and hit["had_supervisor"]


def notices(hits: Iterable[dict]) -> list[float]:
    """Return the seconds until each reader was replaced for which the limit holds."""
    return [hit["notice_seconds"] for hit in hits if is_limited(hit)]


def calm_seconds(run: dict, options: dict) -> list[float]:
    """Return the durations of the undisturbed calls of ``next()``."""
    return run["next_seconds"][WARM_UP_BATCHES : options["calm_batches"]]


def faults(result: dict) -> list[str]:
    """Return every reason for which the benchmark fails; none is how it should be."""
    found = []
    for point in result["points"]:
        name = point["configuration"]
        if "failure" in point:
            found.append(f"{name}: {point['failure']}")
            continue
        run = point["run"]
        if point["wrong"]:
            found.append(f"{name}: wrong mini-batches or states at {point['wrong']}")
        if run["changed"]:
            found.append(
                f"{name}: mini-batches that changed while they were kept: {run['changed']}"
            )
        found += [f"{name}: left over: {left}" for left in _leftovers(run)]
    for point in result["endings"]:
        name = f"{point['ending']}, {point['workers']}"
        for run in point["runs"]:
            if left := _leftovers_of_ending(run):
                found.append(f"{name}: left over: {', '.join(left)}")
    return found


def _leftovers(run: dict) -> list[str]:
    left = [f"{n} {what}" for what, found in run["leftovers"].items() if (n := len(found))]
    left = [f"{text}: {run['leftovers'][text.split()[1]]}" for text in left]
    for what in ("n_descriptors", "n_threads"):
        before, after = (run["usage"][when]["trainer"][what] for when in ("before", "after"))
        if after > before:
            left.append(f"{what} of the trainer grew from {before} to {after}")
    return left


def _leftovers_of_ending(run: dict) -> list[str]:
    names = ("n_children", "n_partial_files_after_next_start")
    left = [f"{name}={run[name]}" for name in names if run[name]]
    if run["shared_memory"]:
        left.append(f"shared memory {run['shared_memory']}")
    return left


# --- text -------------------------------------------------------------------------------------


def show(result: dict) -> str:
    """Return everything that is printed at the end, as text."""
    sections = []
    for point in result["points"]:
        if "failure" in point:
            sections.append(f"{point['configuration']}: FAILED: {point['failure']}")
        else:
            sections.append(_soak(point, result["options"]))
    if result["endings"]:
        title = "Seconds until all children are gone (a killed trainer's tidy-up at the next start)"
        sections.append(f"{title}:\n{aligned(ending_rows(result))}")
    if not faults(result):
        sections.append("Nothing wrong, nothing left over.")
    return "\n\n".join(sections)


def _soak(point: dict, options: dict) -> str:
    run = point["run"]
    calm = np.array(calm_seconds(run, options)) * 1e3
    n_volleys = Counter(hit["volley"] for hit in run["hits"])
    together = sum(n > 1 for n in n_volleys.values())
    lines = [
        f"{point['configuration']}: {len(run['hits'])} signals survived, in {len(n_volleys)} "
        f"volleys of which {together} hit several processes at once",
        f"{len(run['next_seconds'])} mini-batches compared: {len(point['wrong'])} wrong, "
        f"{len(run['changed'])} changed while kept; {len(run['warnings'])} warnings; "
        f"{run['n_removed']} staged files removed meanwhile",
        _hits(run["hits"]),
        f"undisturbed next(): median {np.median(calm):.1f} ms, max {calm.max():.1f} ms",
        f"finalize: {run['finalize_seconds']:.3f} s, all workers gone after "
        f"{run['ended_seconds']:.3f} s (limit 2 s{_missed([run['ended_seconds']], 2.0)})",
        *_growth(run["usage"]),
    ]
    return "\n".join(lines)


def hit_rows(result: dict) -> list[list[str]]:
    """Return a row for each kind of worker and each signal, over all configurations."""
    hits = [hit for point in result["points"] if "run" in point for hit in point["run"]["hits"]]
    rows = [["hit", "signal", "survived", "notice s: median", "p95", "max", "limit"]]
    rows[0] += ["recover s: median", "p95", "max", "beside another"]
    for kind in KINDS:
        for name in SIGNALS:
            found = [hit for hit in hits if (hit["kind"], hit["signal"]) == (kind, name)]
            if found:
                rows.append([kind, name, str(len(found)), *_notice(found), *_recover(found)])
    return rows


def _hits(hits: list[dict]) -> str:
    if not hits:
        return "nothing was hit"
    longest = [max(hit[name] for hit in hits) for name in ("notice_seconds", "recover_seconds")]
    return (
        f"{aligned(hit_rows({'points': [{'run': {'hits': hits}}]}))}\n"
        "Notice is of those that had a supervisor all the while; recovery of those that were not "
        "beside a pending stop or supervisor, which the last column counts. Of all, the longest "
        f"notice took {longest[0]:.3f} s and the longest recovery {longest[1]:.3f} s."
    )


def _notice(hits: list[dict]) -> list[str]:
    cells = _spread([hit["notice_seconds"] for hit in hits if hit["had_supervisor"]])
    limited = notices(hits)
    if not limited:
        return [*cells, "-"]
    return [*cells, f"{NOTICE_LIMIT_SECONDS:g}{_missed(limited, NOTICE_LIMIT_SECONDS)}"]


def _recover(hits: list[dict]) -> list[str]:
    cells = _spread([hit["recover_seconds"] for hit in hits if not hit["beside"]])
    return [*cells, str(sum(bool(hit["beside"]) for hit in hits))]


def _spread(seconds: list[float]) -> list[str]:
    if not seconds:
        return ["-"] * 3
    return [f"{value:.3f}" for value in np.percentile(seconds, (50, 95, 100))]


def _missed(seconds: Iterable[float | None], limit_seconds: float) -> str:
    """Return what to write behind a limit."""
    seconds = list(seconds)
    n_missed = sum(value is None or value > limit_seconds for value in seconds)
    return f" MISSED {n_missed} of {len(seconds)}" if n_missed else ""


def _growth(usages: dict) -> list[str]:
    lines = []
    for who in ("trainer", "supervisor"):
        before, after = usages["before"].get(who), usages["after"].get(who)
        if before and after:
            lines.append(
                f"{who}: descriptors {before['n_descriptors']} -> {after['n_descriptors']}, "
                f"threads {before['n_threads']} -> {after['n_threads']}, resident "
                f"{before['rss_bytes'] / 1e6:.1f} -> {after['rss_bytes'] / 1e6:.1f} MB, of that "
                f"shared {before['shared_bytes'] / 1e6:.1f} -> {after['shared_bytes'] / 1e6:.1f} MB"
            )
    return lines


def ending_rows(result: dict) -> list[list[str]]:
    """Return a row for each way to end and each state of the workers."""
    rows = [["ending", "workers", "runs", "median", "max", "limit", "trainer", "half-copied files"]]
    for point in result["endings"]:
        runs = point["runs"]
        seconds = [run["children_seconds"] for run in runs]
        gone = [value for value in seconds if value is not None]
        median, most = (f"{np.median(gone):.3f}", f"{max(gone):.3f}") if gone else ("-", "-")
        limit = f"{point['limit_seconds']:g}{_missed(seconds, point['limit_seconds'])}"
        trainer = f"{np.median([run['trainer_seconds'] for run in runs]):.3f}"
        partial = max(run["n_partial_files"] for run in runs)
        then = max(run["n_partial_files_after_next_start"] for run in runs)
        files = f"{partial}, then {then}" if partial else "0"
        rows.append(
            [point["ending"], point["workers"], str(len(runs)), median, most, limit, trainer, files]
        )
    return rows
