"""Slow stores: emulated inside ``open``, or a mount."""

import contextlib
from pathlib import Path
from typing import Any

from bench.slow.mount import SlowMount
from bench.slow.store import SlowStore

Store = SlowStore | SlowMount | None


def slow_store(spec: Any) -> contextlib.AbstractContextManager[Store]:
    """Make the root of a run slow within a ``with`` block, as its ``kind_of_store`` says.

    An emulated store is not installed yet. Of a store that is given, the block gets None. The files
    are to be read below the ``root`` of what it gets. A mount is made beside the staging directory:
    so it is the same for all runs over one.
    """
    numbers = (spec.open_seconds, spec.bytes_per_second)
    if spec.kind_of_store == "given":
        return contextlib.nullcontext()
    if spec.kind_of_store == "emulated":
        return SlowStore(spec.root, *numbers)
    place = Path(spec.staging).with_name("mount")
    place.mkdir(parents=True, exist_ok=True)
    return SlowMount(spec.root, place, *numbers, spec.stat_seconds)


def crossed(store: Store) -> dict[str, int]:
    """Return what has crossed the slow store so far, where something counts it."""
    counts = store.counts() if store else {}
    return {f"store_{key.split('_')[0]}": counts[key] for key in ("opens", "bytes_read") if counts}
