"""The records of the epochs: what they hold, when to stop, how they are written and told."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from .settings import Settings, check_target, is_better

#: The record of an epoch, with the keys of ``history.json``.
Record = dict[str, Any]


class History:
    """The records so far, and whether the run is to stop.

    Args:
        settings: When to stop.

    Attributes:
        records: One for each epoch that is trained and validated.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._target = check_target(settings.target, settings.monitored)
        self.records: list[Record] = []

    def add(self, record: Record) -> str:
        """Add the record of an epoch; return why the run is to stop, empty if it is not."""
        self.records.append(record)
        return self.reason_to_stop()

    def reason_to_stop(self) -> str:
        """Return why the run is to stop by its records; empty if it is not."""
        if not self.records:
            return ""
        last = self.records[-1]
        if self._target is not None:
            name, goal = self._target
            value = last.get(name, math.nan)
            if value == goal or is_better(name, value, goal):
                return f"{name} has reached {value:.4g}, the target being {goal:.4g}"
        name = self._settings.early_stopping
        if name:
            values = [record[name] for record in self.records if name in record]
            best = 0
            for i, value in enumerate(values):
                if is_better(name, value, values[best]):
                    best = i
            n_since = len(values) - 1 - best
            if values and n_since >= self._settings.patience:
                return f"{name} has not improved for {n_since} epochs"
        return ""

    def to_json(self, more: Mapping[str, Any]) -> str:
        """Return the content of ``history.json``."""
        return json.dumps({"epochs": self.records, **more}, indent=1) + "\n"


def summary(record: Mapping[str, Any], n_epochs: int) -> str:
    """Return the record of an epoch in one line."""
    words = [f"epoch {record['epoch']:>{len(str(n_epochs))}}/{n_epochs}"]
    plain = ("epoch", "examples", "seconds", "workers", "learning_rate", "updates")
    for name, value in record.items():
        if name not in plain and isinstance(value, float) and not name.endswith("_seconds"):
            words.append(f"{name} {value:.4f}")
    n_each = record["examples"] / max(record["seconds"], 1e-9)
    words.append(f"{record['examples']:,} examples in {record['seconds']:.1f} s ({n_each:,.0f}/s)")
    words.append(f"{record['workers']} worker{'s' * (record['workers'] != 1)}")
    return "   ".join(words)


def write_atomically(path: str, text: str) -> None:
    """Write a file such that a reader sees all of it, or what was there before."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    os.replace(new, path)
