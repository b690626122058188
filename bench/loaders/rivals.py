"""Other loaders of C++ and of threads: NVIDIA DALI's CPU pipeline and Meta's SPDL.

They do the same work: an image of a file, decoded, as float32 with its channels first.
"""

from __future__ import annotations

import os

import numpy as np

from bench.loaders.adapters import Torch
from bench.loaders.checks import Example
from bench.loaders.files import Images
from bench.loaders.spec import RunSpec


class Dali(Torch):
    """DALI, whose own worker processes read the files; its threads decode, one for each core."""

    def __init__(self, spec: RunSpec, dataset: object, _store: None) -> None:
        from nvidia.dali.pipeline import Pipeline

        pairs = [dataset._pairs[index] for index in spec.indices()]
        self._labels = np.array([label for _, label in pairs])
        self._batch_size, self._n_given = spec.batch_size, 0
        self._paths = [os.path.join(spec.root, path) for path, _ in pairs]
        self._pipeline = Pipeline(
            spec.batch_size,
            num_threads=len(os.sched_getaffinity(0)),
            device_id=None,
            py_num_workers=spec.n_readers,
            py_start_method="fork",
            prefetch_queue_depth=2,
        )
        with self._pipeline:
            self._pipeline.set_outputs(self._decoded(self._encoded()))
        self._pipeline.build()

    def _encoded(self) -> object:
        from nvidia.dali import fn

        read = _Read(self._paths)
        return fn.external_source(source=read, parallel=True, batch=False, prefetch_queue_depth=4)

    def _decoded(self, encoded: object) -> object:
        from nvidia.dali import fn, types

        image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        return fn.transpose(fn.cast(image, dtype=types.FLOAT), perm=[2, 0, 1])

    def next_batch(self) -> list[Example]:
        """Return copies: a mini-batch of DALI's is valid until the next one only."""
        (images,) = self._pipeline.run()
        labels = self._labels[self._n_given :][: self._batch_size]
        self._n_given += self._batch_size
        return list(zip(images.as_array().copy(), labels, strict=True))

    def close(self) -> None:
        """End the workers."""
        del self._pipeline


class DaliFiles(Dali):
    """DALI with its own reader of files, one thread."""

    def _encoded(self) -> object:
        from nvidia.dali import fn

        return fn.readers.file(files=self._paths, prefetch_queue_depth=4)[0]


class _Read:
    """Reads a file, in a worker process of DALI's."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __call__(self, sample: object) -> np.ndarray:
        return np.fromfile(self._paths[sample.idx_in_epoch % len(self._paths)], np.uint8)


class Spdl(Torch):
    """SPDL, whose threads each call ``dataset[i]``."""

    def __init__(self, spec: RunSpec, dataset: object, _store: None) -> None:
        from spdl.pipeline import PipelineBuilder

        images = Images(dataset._pairs, spec.root)
        self._pipeline = (
            PipelineBuilder()
            .add_source(spec.indices().tolist())
            .pipe(images.__getitem__, concurrency=spec.n_readers, output_order="input")
            .aggregate(spec.batch_size)
            .pipe(_collated)
            .add_sink(3)
            .build(num_threads=spec.n_readers)
        )
        self._pipeline.start()
        self._batches = self._pipeline.get_iterator()

    def next_batch(self) -> list[Example]:
        """Return views of the collated arrays."""
        return list(zip(*next(self._batches), strict=True))

    def close(self) -> None:
        """End the threads."""
        self._pipeline.stop()


def _collated(examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*examples, strict=True)
    return np.stack(images), np.array(labels)
