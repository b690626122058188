"""The iterator: a drop-in for Chainer's ``MultiprocessIterator``."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import time
from typing import TYPE_CHECKING, Any, NoReturn

import chainer
import numpy as np

from overlapiter.chainer.arguments import (
    OrderSampler,
    above_0_or_none,
    arguments_of,
    choose_sampler,
    count_readers,
    order_source,
)
from overlapiter.chainer.datasets import DatasetPickler
from overlapiter.chainer.progress import Progress, ProgressAttributes
from overlapiter.errors import ExampleError, PipelineError, warn
from overlapiter.faults import (
    FailedBatch,
    SkippedExamples,
    WaitTimeoutError,
    explain_stall,
    warn_if_failure_hangs,
)
from overlapiter.options import (
    BadExamples,
    Staging,
    check_count,
    check_staging,
    count_or_none,
    skip_limit,
)
from overlapiter.order import (
    Course,
    EpochSampler,
    Indices,
    IterationState,
    RunAhead,
    Step,
    checked_order,
)
from overlapiter.scatter import ScatteredOrder
from overlapiter.snapshot import exchange, is_same
from overlapiter.tracing import Trace, chosen_trace
from overlapiter.workers.start.launch import is_importing_main, pickled, start_for

if TYPE_CHECKING:  # nothing that the start of the workers would have to wait for
    from overlapiter.explain import Explanation
    from overlapiter.pipeline import Pipeline
    from overlapiter.sharedmem.slots import MiniBatch
    from overlapiter.stats import Stats
    from overlapiter.workers.reader.face import Face
    from overlapiter.workers.start.parcel import Parcel


class OverlapIterator(ProgressAttributes):
    """Dataset iterator that stages and reads the coming mini-batches in other processes.

    A drop-in for ``chainer.iterators.MultiprocessIterator``: the same arguments, attributes and
    mini-batches, in the order of ``SerialIterator``. With ``staging``, prefetcher processes copy
    the files of the coming mini-batches to the node's own disk while earlier mini-batches are
    read from there. The workers start in the constructor, through a forkserver; this process
    never forks.

    A mini-batch is a list of examples whose arrays are views of shared memory, valid as long as
    they are kept. Use :func:`overlapiter.concat_examples` as the updater's converter to get the
    arrays of a mini-batch without a copy.

    Args:
        dataset: The dataset. It is pickled here and now; later changes do not reach the workers.
        batch_size: Examples in a mini-batch.
        repeat: Whether to go on with the next epoch at the end of one.
        shuffle: Whether to shuffle each epoch; None: unless there is an ``order_sampler``.
        n_processes: File reader processes; None or 0 takes one for each core that is this rank's.
        n_prefetch: Mini-batches that are kept ready beyond the next one.
        shared_mem: Accepted for compatibility; the slots find their size by themselves.
        order_sampler: Called with the current order and position; returns that of the next epoch.
        dataset_timeout: Seconds of waiting that give a :class:`TimeoutWarning`; None for never.
        maxtasksperchild: Parts after which a file reader is replaced by a fresh one, or None.
        staging: Where to stage files; None reads them where they are.
        seed: With it the state of ``random`` and ``numpy.random`` that each example sees follows
            from (seed, epoch, index); so does the order, unless ``order_sampler`` or
            ``shuffle=False`` says otherwise.
        bad_examples: ``"raise"`` raises what the dataset raised. ``"skip"`` leaves out examples
            that cannot be read, up to 1% of the dataset; :class:`overlapiter.Skip` sets another
            limit. Mini-batches are then shorter, and ``skipped`` lists the examples.
        trace: Where to record what all processes do: the path of a JSON file for
            https://ui.perfetto.dev, or what :func:`overlapiter.trace` gave; by default that of the
            ``with overlapiter.trace(...)`` block around this call, if there is one.
        epochs: After how many epochs training is known to end, counted as in ``epoch_detail``.
            Nothing is staged or read for what would follow, until it is asked for all the same.
            None: as :class:`overlapiter.LoadingReport` finds it in the trainer's stop trigger.

    Raises:
        OptionError: An argument cannot work.
        DatasetPicklingError: The dataset cannot be sent to the workers.
        StagingError: The staging directory cannot be used.
    """

    TimeoutWarning = chainer.iterators.MultiprocessIterator.TimeoutWarning

    _finalized = False
    #: The attributes that the constructor sets.
    _own_names: frozenset[str] = frozenset()
    _pipeline: Pipeline
    #: The process whose workers the pipeline has; 0 before there are any.
    _owner_pid = 0
    #: Whether there are none before it is used.
    _starts_later = False

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | None = None,
        n_prefetch: int = 1,
        shared_mem: int | None = None,
        order_sampler: OrderSampler | None = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
        *,
        staging: Staging | None = None,
        seed: int | None = None,
        bad_examples: BadExamples = "raise",
        trace: str | os.PathLike[str] | Trace | None = None,
        epochs: float | None = None,
    ) -> None:
        created_ns = time.monotonic_ns()
        added = set(vars(self))  # by a subclass
        self.dataset = dataset
        self.batch_size = check_count("batch_size", batch_size)
        self.repeat = repeat
        self.shuffle = shuffle
        self.n_processes = count_readers(n_processes)
        self.n_prefetch = check_count("n_prefetch", max(n_prefetch, 1))
        self.shared_mem = count_or_none("shared_mem", shared_mem, minimum=0)
        self.dataset_timeout = above_0_or_none("dataset_timeout", dataset_timeout, "s is no time")
        self._maxtasksperchild = count_or_none("maxtasksperchild", maxtasksperchild)
        self.staging = check_staging(staging)
        self.seed = count_or_none("seed", seed, minimum=0)
        self.epochs = above_0_or_none("epochs", epochs, "epochs are no training")
        self.bad_examples = bad_examples
        limit = skip_limit(bad_examples, len(dataset))
        in_step = repeat and isinstance(order_sampler, ScatteredOrder) and order_sampler.size > 1
        self._skipped = SkippedExamples(limit, dataset, keeps_step=in_step)
        self.order_sampler = choose_sampler(shuffle, order_sampler, seed)
        self._made_sampler = self.order_sampler if order_sampler is None else None
        # As in the original, later changes of these attributes do not reach the workers.
        self._batch_size, self._repeat, self._dataset_size = self.batch_size, repeat, len(dataset)
        self.trace = trace
        self._begin()
        if not self._starts_later:
            self._start(created_ns)
        self._own_names = (frozenset(vars(self)) - added) | {"_pipeline", "_trace", "_owns_trace"}

    # --- iteration ----------------------------------------------------------------------------

    def __next__(self) -> MiniBatch:
        """Return the next mini-batch. Blocks until it is there.

        Raises:
            StopIteration: There is none; with ``repeat=False``, after the last one.
            Exception: What the dataset raised, with an ExampleError as its cause; the next call
                gives the following mini-batch.
            TooManyBadExamplesError: More examples were left out than ``bad_examples`` allows.
            EmptyBatchError: All examples were, and other ranks are in step with this one.
        """
        if self._finalized:
            raise RuntimeError("the iterator has been finalized; make a new one")
        self._own()
        while True:
            now = self._progress
            before = now.previous_epoch_detail if now.is_passed_over else self.epoch_detail
            step, batch = self._next_step()
            error, is_passed_over = self._skipped.judge(batch)
            state = step.state
            if now.is_passed_over and now.state.is_new_epoch:
                state = state._replace(is_new_epoch=True)
            # If an interruption comes before this, the step is done again; after it, it is done,
            # so as little as can be comes before the return.
            self._progress = Progress(state, before, self._progress.ahead, step, is_passed_over)
            if error is None and not is_passed_over:
                return batch  # type: ignore[no-any-return]  # a FailedBatch has an error
            if error is not None:
                raise error

    next = __next__

    def _next_step(self) -> tuple[Step, Any]:
        """Wait for the mini-batch of the next step; it is the next until the progress says more."""
        begun_ns = time.monotonic_ns()
        self._progress.drop_taken()
        self._run_ahead()
        self._announce_orders()
        self._pipeline.count_index_lists(time.monotonic_ns() - begun_ns)
        step = self._progress.ahead.steps[0]
        if step.index_list is None:
            self._stop(step)
        if step.index_list.indices:  # an empty dataset has one empty mini-batch
            return step, self._wait()
        from overlapiter.sharedmem.slots import MiniBatch  # as the pipeline has done

        return step, MiniBatch([])

    def _stop(self, step: Step) -> NoReturn:
        if step.error is not None:
            self._progress.ahead.take()  # the next call asks the sampler again
            raise step.error
        self._progress = self._progress._replace(
            previous_epoch_detail=self.epoch_detail, is_passed_over=False
        )
        raise StopIteration

    def _wait(self) -> MiniBatch | FailedBatch:
        while True:
            try:
                steps = self._progress.ahead.steps
                return self._pipeline.take(steps, self.dataset_timeout)  # type: ignore[no-any-return]  # a view
            except WaitTimeoutError as stall:
                text = explain_stall(stall, self.dataset, self.dataset_timeout)
                warn(text, self.TimeoutWarning)

    # --- running ahead ------------------------------------------------------------------------

    def _begin(
        self, state: IterationState | None = None, previous_epoch_detail: float = -1.0
    ) -> None:
        """Set the state, by default the first one, and tell the workers, if there are any."""
        sampler, size = self.order_sampler, len(self.dataset)
        next_order = order_source(sampler, size)
        if state is None:
            order = None
            if next_order is not None:
                order = checked_order(next_order(np.arange(size), 0, 0), self._dataset_size)
            state = IterationState(0, 0, False, order)
        knows_any = sampler is None or isinstance(sampler, EpochSampler)
        course = Course(self._batch_size, self._repeat, next_order, self._dataset_size, knows_any)
        self._skipped.begin()
        self._progress = Progress(state, previous_epoch_detail, RunAhead(state, course))
        if self._owner_pid == os.getpid():
            self._pipeline.reset()
            self._submit_first()

    def _run_ahead(self, *, may_cross_epoch: bool = True) -> None:
        """Generate index lists as far ahead as the stages need them."""
        n_needed = self.n_prefetch + 2
        n_wanted = n_needed if self.staging is None else max(n_needed, self.staging.look_ahead)
        extend = self._progress.ahead.extend
        extend(n_needed, n_wanted, may_cross_epoch=may_cross_epoch, end=self.epochs)

    def _announce_orders(self) -> None:
        """Send the pipeline the orders of epochs that have become known, for staging."""
        ahead = self._progress.ahead
        if self.staging is not None and ahead.has_new_orders:
            orders = ahead.known_orders()
            others: dict[int, Indices] = {}
            if isinstance(self.order_sampler, ScatteredOrder):
                others = self.order_sampler.of_neighbours(orders, self._dataset_size)
            self._pipeline.announce(orders, others)
            ahead.has_new_orders = False

    def _start(self, created_ns: int) -> None:
        with contextlib.suppress(PipelineError):  # it fails again below, and is told to all ranks
            start_for(self.dataset)
        from overlapiter.pipeline import Pipeline  # while the forkserver starts
        from overlapiter.planning import planned
        from overlapiter.workers.plan import SupervisorPlan

        order = self._state.order

        def make() -> tuple[Parcel, SupervisorPlan]:
            warn_if_failure_hangs()
            self._trace, self._owns_trace = chosen_trace(self.trace)
            parcel, imports = pickled(self.dataset, DatasetPickler, _face_of)
            return parcel, SupervisorPlan(
                n_readers=self.n_processes,
                n_build_ahead=self.n_prefetch + 1,
                batch_size=self.batch_size,
                dataset_size=len(self.dataset),
                # The original passes the elements of the order to the dataset.
                index_type=np.dtype(np.intp if order is None else order.dtype).char,
                seed=self.seed,
                is_skipping=self.bad_examples != "raise",
                max_parts_per_reader=self._maxtasksperchild,
                imports=imports,
            )

        indices = range(len(self.dataset)) if order is None else order
        first = [int(index) for index in indices[: self.batch_size]]
        parcel, plan, joined = planned(
            make, self.staging, self.dataset, first, sampler=self.order_sampler
        )
        self._pipeline = Pipeline(parcel, plan, created_ns, trace=self._trace, joined=joined)
        self._owner_pid = os.getpid()
        self._submit_first()

    def _submit_first(self) -> None:
        """Send the workers their first index lists, from where the run begins or goes on."""
        state, share = self._state, self._pipeline.share
        if share is not None:
            share.begin(state.epoch, state.current_position, state.order)
        self._run_ahead(may_cross_epoch=False)
        self._pipeline.flush(self._progress.ahead.steps)
        self._announce_orders()

    def _own(self) -> None:
        """Have workers of this process, to which another one may have handed its iterator.

        Chainer's MultiprocessParallelUpdater does so. They begin where the other one stood then.
        """
        if self._owner_pid == os.getpid() or self._finalized:
            return
        if self.staging is not None and self.staging.peers is not None:
            raise PipelineError(
                "the iterator was made in another process, and finds peers in that one alone; make "
                "it in the process that uses it"
            )
        self.trace = None  # that is the other one's
        self._begin(self._state, self._progress.previous_epoch_detail)
        self._start(time.monotonic_ns())

    # --- starting over, saving, ending -------------------------------------------------------

    def reset(self) -> None:
        """Go back to the start, with a new order from ``order_sampler``; the workers live on."""
        self._refuse_if_finalized()
        self._own()
        self._begin()

    def serialize(self, serializer: Any) -> None:
        """Save or load the state. Saving drops no mini-batch that is being made.

        The random state of an order sampler is not saved, as in Chainer; with ``seed`` there is
        none to save.
        """
        self._refuse_if_finalized()
        state, previous = exchange(
            serializer,
            self._state,
            self._progress.previous_epoch_detail,
            self.batch_size,
            self._dataset_size,
            self.order_sampler,
        )
        if not is_same(state, self._state):
            self._own()
            self._begin(state, previous)
            return
        self._progress = self._progress._replace(previous_epoch_detail=previous)

    @property
    def skipped(self) -> list[ExampleError]:
        """The error of each example left out so far, with ``index``, ``paths`` and ``reason``."""
        return [*self._skipped.errors.values()]

    def stats(self) -> Stats:
        """Return what all processes have done, up to now or up to the end.

        It takes about 50 microseconds. ``now.since(before)`` gives what was done between two.
        """
        self._own()
        return self._pipeline.stats()

    def explain(self, since: Stats | None = None) -> Explanation:
        """Say in plain words what the trainer waits for, what to change, and what that brings.

        ``print(it.explain())`` prints the paragraph.

        Args:
            since: What :meth:`stats` gave when the time to be explained began; None for the first
                mini-batch, since the first one waits for processes to start.
        """
        self._own()
        return self._pipeline.explain(since)

    def finalize(self) -> None:
        """End all worker processes. Mini-batches that were taken stay valid."""
        self._finalized = True
        if hasattr(self, "_pipeline"):  # else the constructor failed
            self._pipeline.close()
        if getattr(self, "_owns_trace", False):
            self._trace.close()

    def _refuse_if_finalized(self) -> None:
        if self._finalized:
            raise NotImplementedError(
                "Reset of finalized OverlapIterator is currently not supported."
            )

    # --- copies -------------------------------------------------------------------------------

    def __copy__(self) -> OverlapIterator:
        """Return an independent iterator over the same dataset, in the same state."""
        return _revived(*self.__reduce__()[1])

    def __reduce__(self) -> Any:
        """Pickle the arguments, the state and attributes of the user; the workers stay here."""
        own = self._own_names.union(vars(OverlapIterator), vars(ProgressAttributes))
        added = {name: value for name, value in vars(self).items() if name not in own}
        state = self._state, self._progress.previous_epoch_detail
        return _revived, (type(self), arguments_of(self), added, *state)


def _face_of(dataset: Any) -> Face:
    """Return the face that reads a dataset."""
    from overlapiter.chainer.images import ImageFace, gives_plain_images  # while it starts, too
    from overlapiter.workers.reader.face import ChainerFace

    kind = ImageFace if gives_plain_images(dataset) else ChainerFace
    return kind(dataset, _pickled_config())


def _pickled_config() -> dict[str, bytes]:
    """Return Chainer's configuration in this thread, but for what cannot be pickled."""
    config = chainer.config
    pickled_config = {}
    for name in {**vars(chainer.global_config), **vars(config._local)}:
        stream = io.BytesIO()
        with contextlib.suppress(Exception):  # a value of the user's, for the trainer alone
            DatasetPickler(stream, pickle.HIGHEST_PROTOCOL).dump(getattr(config, name))
            pickled_config[name] = stream.getvalue()
    return pickled_config


def _revived(
    kind: type[OverlapIterator],
    arguments: dict[str, Any],
    added: dict[str, Any],
    state: IterationState,
    previous_epoch_detail: float,
) -> OverlapIterator:
    iterator = kind.__new__(kind)  # a subclass may take other arguments
    iterator.__dict__.update(added)
    iterator._starts_later = is_importing_main()  # handed to a process that is being started
    OverlapIterator.__init__(iterator, **arguments)
    iterator._begin(IterationState(*state), previous_epoch_detail)
    return iterator
