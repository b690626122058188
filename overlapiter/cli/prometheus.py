"""Writes the statistics of iterators as Prometheus reads them: node_exporter's textfile format."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping

from overlapiter.stats import GAUGES, Stats

from .console import CommandError, written

#: What stands in a label for what would end it.
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_Labelled = tuple[Mapping[str, object], Stats]


def write_metrics(path: str, jobs: Iterable[_Labelled]) -> None:
    """Replace a file by the metrics of jobs, at once: its reader never sees a part.

    Args:
        path: The file; node_exporter takes those that end in ``.prom``.
        jobs: The labels and the statistics of each.

    Raises:
        CommandError: It cannot be written.
    """
    try:
        with written(path) as file:
            file.write(metrics_text([*jobs]).encode())
    except OSError as error:
        raise CommandError(f"{error}; name a file in a directory that you may write") from error


def metrics_text(jobs: list[_Labelled]) -> str:
    """Return the metrics of jobs.

    Source: "Exposition formats", prometheus.io: the text format 0.0.4.
    """
    lines = []
    values = [(labels, stats.as_dict()) for labels, stats in jobs]
    for name in values[0][1] if values else ():
        told = [(labels, facts[name]) for labels, facts in values]
        told = [(labels, value) for labels, value in told if isinstance(value, (int, float))]
        is_counter = name in _EXPLAINED and name not in GAUGES
        metric = f"overlapiter_{name}" + "_total" * is_counter
        if told:
            lines.append(f"# HELP {metric} {_EXPLAINED.get(name, name.replace('_', ' '))}")
            lines.append(f"# TYPE {metric} {'counter' if is_counter else 'gauge'}")
        for labels, value in told:
            words = [f'{key}="{str(text).translate(_ESCAPES)}"' for key, text in labels.items()]
            lines.append(f"{metric}{{{','.join(words)}}} {value}")
    return "\n".join(lines) + "\n"


def _explained() -> dict[str, str]:
    """Return the first sentence of what each field means."""
    text = inspect.cleandoc(str(Stats.__doc__)).partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()).partition(". ")[0] for name, words in found}


_EXPLAINED = _explained()
