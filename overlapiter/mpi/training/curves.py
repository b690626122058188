"""The learning curves of a run as a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .epochs import NO_MEASURES, Record


def draw(records: Sequence[Record], path: str, say: Callable[[str], None]) -> None:
    """Draw each measure over the epochs as a PNG, that of training and of validation together."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        say("no curves.png without matplotlib: pip install 'overlapiter[train]'")
        return
    names = [name for name in (records[0] if records else ()) if name not in NO_MEASURES]
    names = [name for name in names if not name.startswith("val_")]
    figure = Figure(figsize=(5 * max(1, len(names)), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(1, len(names), place)
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            points = [(record["epoch"], record[key]) for record in records if key in record]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
