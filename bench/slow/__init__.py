"""Slow stores: emulated inside ``open``, or a mount."""

import contextlib
from pathlib import Path
from typing import Any

from bench.slow.mount import SlowMount
from bench.slow.store import SlowStore

Store = SlowStore | SlowMount | None


def slow_store(spec: Any) -> contextlib.AbstractContextManager[Store]:
    """Make the root of a run slow within a ``with`` block, as its ``kind_of_store`` says.

    The block gets None of a store that is given, else what the files are to be read below the
    ``root`` of. An emulated store is not installed yet. A mount is made beside the staging
    directory: so it is the same for all runs over one.
    """
    numbers = (spec.open_seconds, spec.bytes_per_second)
    if spec.kind_of_store == "given":
        return contextlib.nullcontext()
    if spec.kind_of_store == "emulated":
        return SlowStore(spec.root, *numbers)
    place = Path(spec.staging).with_name("mount")
    place.mkdir(parents=True, exist_ok=True)
    return SlowMount(spec.root, place, *numbers, spec.stat_seconds)
