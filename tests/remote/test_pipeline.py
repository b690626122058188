"""The engine reads an object store, without any framework."""

from __future__ import annotations

from pathlib import Path

from overlapiter.options import Staging
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.remote.stores import Objects
from tests.support.engine import Engine


def test_each_object_is_read_once_and_then_staged(objects: Objects, tmp_path: Path) -> None:
    staging = Staging(
        tmp_path / "fast",
        source=objects.root,
        storage_options=objects.store.options,
        n_prefetchers=1,
        keep_free=0,
    )
    with Engine(DeclaredFiles(objects.root, objects.names), 4, staging=staging) as engine:
        for n in range(0, 2 * len(objects.names), 4):
            for values, index in next(engine):
                name = objects.names[int(index)]
                assert values.tobytes() == (objects.folder / name).read_bytes()
                assert index in range(n % len(objects.names), n % len(objects.names) + 4)
        assert engine.stats().opens_source == 0
    assert objects.requests("GET") == dict.fromkeys(objects.names, 1)
