"""Makes the root of a run slow in the way that the run asks for."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from bench.loaders.spec import OF_STORE
from bench.slow.mount import SlowMount
from bench.slow.store import SlowStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.loaders.spec import RunSpec

    Store = SlowStore | SlowMount | None


@contextlib.contextmanager
def slow_store(spec: RunSpec) -> Iterator[Store]:
    """Make the root of a run slow, in the way that the run asks for, within a ``with`` block.

    An emulated store is installed in this process, except for the ceiling, which has it installed
    in one process of its own. Of a store that is given, None is yielded.
    """
    kind = spec.mount if spec.loader in OF_STORE else "given"
    if kind == "given":
        yield None
    elif kind == "fuse":
        os.makedirs(spec.mount_point, exist_ok=True)
        numbers = (spec.open_seconds, spec.bytes_per_second, spec.stat_seconds)
        with SlowMount(spec.root, spec.mount_point, *numbers) as mount:
            yield mount
    else:
        with SlowStore(spec.root, spec.open_seconds, spec.bytes_per_second) as store:
            if spec.loader != "ceiling":
                store.install()
            yield store


def root_of(store: Store, root: str) -> str:
    """Return where the files of ``root`` are to be read."""
    return store.root if isinstance(store, SlowMount) else root


def emulated(store: Store) -> SlowStore | None:
    """Return the store if it is an emulated one, which data sets have to carry along."""
    return store if isinstance(store, SlowStore) else None


def crossed(store: Store) -> dict[str, int]:
    """Return what has crossed the slow store so far, where something counts it."""
    if store is None:
        return {}
    if isinstance(store, SlowMount):
        counts = store.counts()
        return {"store_opens": counts["opens"], "store_bytes": counts["bytes_read"]}
    return {"store_opens": store.opens, "store_bytes": store.bytes_read}
