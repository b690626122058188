"""Construction, the end, and what stays visible, checked against Chainer's own iterators."""

from __future__ import annotations

import gc
import inspect
import os
from typing import Any

import chainer
import pytest
from chainer.iterators import MultiprocessIterator

from overlapiter import OverlapIterator
from overlapiter.errors import DatasetPicklingError
from tests.chainer.conftest import Maker, NumberedImages
from tests.chainer.iterator_datasets import Pixels, Values, indices_of
from tests.chainer.scripts import are_gone, wait_for_workers


def parameters(kind: type) -> list[tuple[str, Any]]:
    """Return the names and defaults of what a class takes by position."""
    found = inspect.signature(kind).parameters.values()
    return [(p.name, p.default) for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]


def test_the_arguments_are_those_of_the_original_in_the_same_order() -> None:
    assert parameters(OverlapIterator) == parameters(MultiprocessIterator)


def test_the_arguments_can_be_read_back(make_parallel: Maker) -> None:
    dataset = Pixels(4)
    options = {"n_processes": 1, "n_prefetch": 3, "shared_mem": 1000, "dataset_timeout": 9.0}
    iterator = make_parallel(dataset, 2, repeat=False, shuffle=True, **options)

    assert isinstance(iterator, chainer.dataset.Iterator)
    assert iterator.dataset is dataset
    assert (iterator.batch_size, iterator.repeat, iterator.shuffle) == (2, False, True)
    assert (iterator.n_processes, iterator.n_prefetch) == (1, 3)
    assert (iterator.shared_mem, iterator.dataset_timeout) == (1000, 9.0)
    assert callable(iterator.order_sampler)


def test_attributes_of_the_users_own_can_be_set(make: Maker) -> None:
    iterator = make(Pixels(4), 2)

    iterator.communicator = "as ChainerMN does"

    assert iterator.communicator == "as ChainerMN does"


@pytest.mark.parametrize("n_processes", [None, 0])
def test_no_number_of_processes_means_the_processors(
    make_parallel: Maker, n_processes: int | None
) -> None:
    iterator = make_parallel(Pixels(4), 2, n_processes=n_processes)

    expected = os.cpu_count()
    if make_parallel.kind != "multiprocess":
        expected = len(os.sched_getaffinity(0))  # those this process may use
    assert iterator.n_processes == expected


def test_a_prefetch_of_none_at_all_means_one(make_parallel: Maker) -> None:
    assert make_parallel(Pixels(4), 2, n_prefetch=0).n_prefetch == 1


def test_arguments_that_cannot_work_are_refused_as_by_the_original(make_parallel: Maker) -> None:
    with pytest.raises(ValueError, match="`shuffle` is not `None` and a custom `order_sampler`"):
        make_parallel(Pixels(4), 2, shuffle=True, order_sampler=lambda order, _: order)
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_proceses'"):
        make_parallel(Pixels(4), 2, n_proceses=2)
    with pytest.raises(ValueError, match=r"shared_mem|Array length"):
        make_parallel(Pixels(4), 2, shared_mem=-1)
    with pytest.raises(ValueError, match="processes"):
        next(make_parallel(Pixels(4), 2, n_processes=-1))


def test_the_warning_of_a_timeout_is_the_class_of_the_original() -> None:
    assert OverlapIterator.TimeoutWarning is MultiprocessIterator.TimeoutWarning
    assert issubclass(OverlapIterator.TimeoutWarning, RuntimeWarning)


def test_after_finalize_the_progress_can_be_read_and_the_rest_is_refused(
    make_parallel: Maker,
) -> None:
    iterator = make_parallel(Pixels(10), 4, order_sampler=lambda order, _: order)
    batch = next(iterator)
    next(iterator)

    iterator.finalize()
    iterator.finalize()

    assert (iterator.current_position, iterator.epoch, iterator.is_new_epoch) == (8, 0, False)
    assert (iterator.epoch_detail, iterator.previous_epoch_detail) == (0.8, 0.4)
    assert indices_of(batch) == [0, 1, 2, 3]
    with pytest.raises(NotImplementedError, match="Reset of finalized"):
        iterator.reset()
    with pytest.raises(NotImplementedError, match="Reset of finalized"):
        iterator.serialize(chainer.serializers.DictionarySerializer())


def test_next_after_finalize_says_so(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(10), 4)
    iterator.finalize()

    with pytest.raises(RuntimeError, match="has been finalized"):
        next(iterator)


def test_finalize_before_the_first_mini_batch_is_fine(make: Maker, images: NumberedImages) -> None:
    make(images(4), 2).finalize()


def test_leaving_a_with_block_finalizes(make_parallel: Maker, images: NumberedImages) -> None:
    with make_parallel(images(4), 2, shuffle=False) as iterator:
        assert indices_of(next(iterator)) == [0, 1]

    with pytest.raises(NotImplementedError):
        iterator.reset()


def test_an_exception_leaves_a_with_block_as_it_is(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(4), 2)
    with pytest.raises(ZeroDivisionError), iterator:
        raise ZeroDivisionError

    with pytest.raises(NotImplementedError):
        iterator.reset()


def test_dropping_the_last_reference_ends_the_workers_at_once() -> None:
    iterator = OverlapIterator(Pixels(10), 4, n_processes=2)
    next(iterator)
    workers = wait_for_workers({"ovl-supervisor": 1, "ovl-reader": 2})

    gc.disable()  # no reference cycle keeps it alive
    try:
        del iterator
        assert are_gone(workers)
    finally:
        gc.enable()


def test_a_dataset_that_cannot_be_pickled_is_refused_with_the_attribute_at_fault(
    make_ours: Maker,
) -> None:
    class Local(Values):
        pass

    with pytest.raises(DatasetPicklingError, match=r"dataset\.values\[1\] cannot be sent"):
        make_ours(Values([1, lambda: 2]), 1)
    with pytest.raises(DatasetPicklingError, match="Local"):
        make_ours(Local([1]), 1)
