"""Makes the root of a run slow in the way that the run asks for."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from bench.slowmount import SlowMount
from bench.slowstore import SlowStore
from bench.spec import LOADERS_OF_STORE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.spec import RunSpec


@contextlib.contextmanager
def slow_store(spec: RunSpec) -> Iterator[SlowStore | SlowMount | None]:
    """Make the root of a run slow, in the way that the run asks for, within a ``with`` block.

    An emulated store is installed in this process, except for the ceiling, which has it installed
    in one process of its own.
    """
    if spec.loader not in LOADERS_OF_STORE or spec.mount == "given":
        yield None
    elif spec.mount == "fuse":
        os.makedirs(spec.mount_point, exist_ok=True)
        numbers = (spec.open_seconds, spec.bytes_per_second, spec.stat_seconds)
        with SlowMount(spec.root, spec.mount_point, *numbers) as mount:
            yield mount
    else:
        with SlowStore(spec.root, spec.open_seconds, spec.bytes_per_second) as store:
            if spec.loader != "ceiling":
                store.install()
            yield store


def crossed(store: SlowStore | SlowMount | None) -> dict[str, int]:
    """Return what has crossed the slow store so far, where something counts it."""
    if store is None:
        return {}
    if isinstance(store, SlowMount):
        counts = store.counts()
        return {"store_opens": counts["opens"], "store_bytes": counts["bytes_read"]}
    return {"store_opens": store.opens, "store_bytes": store.bytes_read}
