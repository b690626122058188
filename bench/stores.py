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
def open_store(
    kind: str,
    root: str,
    mount_point: str,
    open_seconds: float,
    bytes_per_second: float,
    stat_seconds: float = 0.0,
) -> Iterator[SlowStore | SlowMount | None]:
    """Make what shows the files below ``root`` slowly, for the length of a ``with`` block.

    Args:
        kind: One of :data:`bench.spec.MOUNTS`.
        root: The directory of the files; slow by itself if the kind is ``given``.
        mount_point: Where a mount is made; its parent exists.
        open_seconds: What each open waits.
        bytes_per_second: The bandwidth that all readers share.
        stat_seconds: What a ``stat`` waits in a mount.

    Returns:
        A mount; an emulated store, not yet installed; or None.
    """
    if kind == "given":
        yield None
    elif kind == "fuse":
        os.makedirs(mount_point, exist_ok=True)
        with SlowMount(root, mount_point, open_seconds, bytes_per_second, stat_seconds) as mount:
            yield mount
    else:
        with SlowStore(root, open_seconds, bytes_per_second) as store:
            yield store


@contextlib.contextmanager
def slow_store(spec: RunSpec) -> Iterator[SlowStore | SlowMount | None]:
    """Make the root of a run slow, in the way that the run asks for, within a ``with`` block.

    An emulated store is installed in this process, except for the ceiling, which has it installed
    in one process of its own.
    """
    kind = spec.mount if spec.loader in LOADERS_OF_STORE else "given"
    numbers = (spec.open_seconds, spec.bytes_per_second, spec.stat_seconds)
    with open_store(kind, spec.root, spec.mount_point, *numbers) as store:
        if isinstance(store, SlowStore) and spec.loader != "ceiling":
            store.install()
        yield store


def root_of(store: SlowStore | SlowMount | None, root: str) -> str:
    """Return where the files of ``root`` are to be read."""
    return store.root if isinstance(store, SlowMount) else root


def emulated(store: SlowStore | SlowMount | None) -> SlowStore | None:
    """Return the store if it is an emulated one, which data sets have to carry along."""
    return store if isinstance(store, SlowStore) else None


def crossed(store: SlowStore | SlowMount | None) -> dict[str, int]:
    """Return what has crossed the slow store so far, where something counts it."""
    if store is None:
        return {}
    if isinstance(store, SlowMount):
        counts = store.counts()
        return {"store_opens": counts["opens"], "store_bytes": counts["bytes_read"]}
    return {"store_opens": store.opens, "store_bytes": store.bytes_read}
