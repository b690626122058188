"""Slow stores: emulated inside ``open``, or a mount."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from bench.slow.mount import SlowMount
from bench.slow.store import SlowStore

Store = SlowStore | SlowMount | None


@contextlib.contextmanager
def slow_store(spec: Any, kind: str) -> Iterator[Store]:
    """Make the root of a run slow within a ``with`` block: "emulated", a "fuse" mount, or "given".

    An emulated store is not installed yet. Of a store that is given, None is yielded. The files
    are to be read below the ``root`` of what is yielded.
    """
    numbers = (spec.open_seconds, spec.bytes_per_second)
    if kind == "given":
        yield None
    elif kind == "fuse":
        os.makedirs(spec.mount_point, exist_ok=True)
        with SlowMount(spec.root, spec.mount_point, *numbers, spec.stat_seconds) as mount:
            yield mount
    else:
        with SlowStore(spec.root, *numbers) as store:
            yield store


def crossed(store: Store) -> dict[str, int]:
    """Return what has crossed the slow store so far, where something counts it."""
    counts = store.counts() if store else {}
    return {f"store_{key.split('_')[0]}": counts[key] for key in ("opens", "bytes_read") if counts}
