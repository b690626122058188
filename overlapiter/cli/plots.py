"""Figures of the commands; needs matplotlib, the extra ``plots``."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from .console import CommandError

if TYPE_CHECKING:
    from overlapiter.clairvoyant.planner import Forecast
    from overlapiter.mpi.searching.study import Study, Trial

# Of Okabe and Ito, which the colour-blind can tell apart.
_BLUE, _GREY, _RED, _SKY = "#0072B2", "#999999", "#D55E00", "#56B4E9"
_ORANGE, _GREEN = "#E69F00", "#009E73"
_OF_STATE = {"complete": _BLUE, "pruned": _ORANGE}


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError(
            "a figure needs matplotlib: pip install 'overlapiter[plots]'; --json without --output "
            "needs none"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    try:
        # Else a name without an ending would get another one.
        kind = os.path.splitext(path)[1][1:] or "png"
        figure.savefig(path, format=kind, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as error:  # a kind of file that matplotlib does not write
        raise CommandError(f"{path} cannot be drawn: {error}") from error


def draw_seconds(seconds: dict[str, float | None], title: str, path: str) -> None:
    """Draw a bar for each policy that can run, with the lower bound as a line."""
    bars = {name: value for name, value in seconds.items() if value is not None}
    figure = _figure(8, 0.9 + 0.36 * len(bars))
    axes = figure.subplots()
    colours = [_BLUE if name == "ours" else _SKY for name in bars]
    drawn = axes.barh([*bars], [*bars.values()], color=colours)
    axes.bar_label(drawn, fmt="%.4g", padding=3)
    if "lower bound" in bars:
        axes.axvline(bars["lower bound"], color=_GREY, linestyle=":")
    axes.invert_yaxis()
    axes.set_xlabel("seconds of the whole run")
    axes.set_title(title, loc="left", fontsize=9)
    _save(figure, path)


def draw_plan(now: Forecast, runs: dict[str, float], path: str) -> None:
    """Draw from where the epochs read, and what the run takes with more or less to run on."""
    figure = _figure(10, 4)
    left, right = figure.subplots(1, 2)
    epochs = {"epoch 1": now.first, "epoch 2": now.second, "later ones": now.later}
    sources = {
        "own RAM": ("ram_bytes", _SKY),
        "own disk": ("disk_bytes", _BLUE),
        "peers": ("peer_bytes", _GREY),
        "store": ("store_bytes", _RED),
    }
    bottom = [0.0] * len(epochs)
    for label, (field, colour) in sources.items():
        sizes = [getattr(epoch, field) / 1e9 for epoch in epochs.values()]
        left.bar([*epochs], sizes, bottom=bottom, label=label, color=colour)
        bottom = [below + size for below, size in zip(bottom, sizes, strict=True)]
    left.set_ylabel("GB read in an epoch")
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, frameon=False)
    colours = [_BLUE if name == "as it is" else _SKY for name in runs]
    right.barh([*runs], [seconds / 3600 for seconds in runs.values()], color=colours)
    right.invert_yaxis()
    right.set_xlabel("hours of the run")
    _save(figure, path)


def draw_steps(steps: list[dict[str, float]], title: str, path: str) -> None:
    """Draw what a trace shows: the trainer, the slow store, and what is ready, over time."""
    figure = _figure(8, 5.2)
    top, middle, bottom = figure.subplots(3, sharex=True)
    seconds = [step["seconds"] for step in steps]
    waited = [100 * min(1.0, step["waited"]) for step in steps]
    top.fill_between(seconds, waited, 100, color=_GREY, alpha=0.3, lw=0, label="trains")
    top.fill_between(seconds, 0, waited, color=_ORANGE, lw=0, label="waits for data")
    top.set(ylabel="trainer, % of time", ylim=(0, 100))
    speed, reads = ([step[name] for step in steps] for name in ("mb_per_second", "reads"))
    middle.plot(seconds, speed, color=_BLUE, label="slow store, MB/s")
    middle.plot(seconds, reads, color=_GREEN, ls="--", label="reads in flight")
    middle.set(ylabel="MB/s, reads", ylim=(0, None))
    bottom.plot(seconds, [step["ready"] for step in steps], color=_BLUE, label="ready")
    bottom.set(ylabel="mini-batches", ylim=(0, max(1.0, bottom.get_ylim()[1])), xlabel="time, s")
    for axes in (top, middle, bottom):
        above = {"loc": "lower right", "bbox_to_anchor": (1, 0.97), "ncols": 2}
        axes.legend(**above, fontsize=9, frameon=False)
        axes.margins(x=0)
    if title:
        figure.suptitle(title)
    _save(figure, path)


def draw_search(study: Study, path: str) -> None:
    """Draw the trials of a search in their order, and against each setting."""
    searched = study.space.searched
    n_columns = 1 + len(searched)
    figure = _figure(3.4 * n_columns, 3.4)
    axes = figure.subplots(1, n_columns, sharey=True, squeeze=False)[0]
    trials = [trial for trial in study.trials() if trial.state in _OF_STATE]
    _draw_order(axes[0], study, trials)
    for of_setting, (name, possible) in zip(axes[1:], searched.items(), strict=True):
        values = [trial.params[name] for trial in trials]
        if isinstance(possible, list):  # its choices, from left to right
            values = [possible.index(value) for value in values]
            of_setting.set_xticks(range(len(possible)), list(map(str, possible)))
        else:
            of_setting.set_xscale("log" if possible.log else "linear")
            of_setting.set_xlim(possible.low, possible.high)
        _scatter(of_setting, values, trials)
        of_setting.set_xlabel(name)
    _save(figure, path)


def _draw_order(axes: Any, study: Study, trials: list[Trial]) -> None:
    _scatter(axes, [trial.number for trial in trials], trials)
    complete = [trial for trial in trials if trial.state == "complete"]
    best = max if study.is_maximized else min
    values = [trial.value for trial in complete if trial.value is not None]
    so_far = list(itertools.accumulate(values, best))
    axes.step([trial.number for trial in complete], so_far, where="post", color="black", lw=1)
    axes.set_xlabel("trial (line: best so far)")
    axes.set_ylabel(study.metric)
    axes.legend(fontsize=8)


def _scatter(axes: Any, places: list[Any], trials: list[Trial]) -> None:
    for state, colour in _OF_STATE.items():
        chosen = [i for i, trial in enumerate(trials) if trial.state == state]
        heights = [trials[i].value for i in chosen]
        axes.scatter([places[i] for i in chosen], heights, s=18, color=colour, label=state)
    axes.grid(alpha=0.3)
