"""The figure of a search: its trials in their order, and against each setting."""

from __future__ import annotations

import itertools
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from overlapiter.mpi.searching.space import Range
from overlapiter.mpi.searching.study import Study, Trial

_COLOURS = {"complete": "#0072B2", "pruned": "#E69F00"}


def draw(study: Study, path: str) -> None:
    """Draw a search; a PNG file."""
    searched = study.space.searched
    n_columns = 1 + len(searched)
    figure = Figure(figsize=(3.4 * n_columns, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, n_columns, sharey=True, squeeze=False)[0]
    trials = [trial for trial in study.trials() if trial.state in _COLOURS]
    _draw_order(axes[0], study, trials)
    for of_setting, (name, possible) in zip(axes[1:], searched.items(), strict=True):
        values = [trial.params[name] for trial in trials]
        if isinstance(possible, list):  # its choices, from left to right
            values = [possible.index(value) for value in values]
            of_setting.set_xticks(range(len(possible)), list(map(str, possible)))
        elif possible.log:
            of_setting.set_xscale("log")
        _scatter(of_setting, values, trials)
        of_setting.set_xlabel(name)
        if isinstance(possible, Range):
            of_setting.set_xlim(possible.low, possible.high)
    figure.savefig(path, dpi=120)


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
    for state, colour in _COLOURS.items():
        chosen = [i for i, trial in enumerate(trials) if trial.state == state]
        heights = [trials[i].value for i in chosen]
        axes.scatter([places[i] for i in chosen], heights, s=18, color=colour, label=state)
    axes.grid(alpha=0.3)
