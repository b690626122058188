"""The errors that overlapiter raises, and the warnings that it gives.

::

    OverlapError
    ├── OptionError (also ValueError)      an argument cannot work; raised at construction
    ├── DatasetPicklingError (also TypeError)  the dataset cannot be sent to the workers
    ├── ExampleError                       one example could not be read
    ├── TooManyBadExamplesError            more examples had to be left out than were allowed
    ├── EmptyBatchError                    every example of a rank's mini-batch was left out
    ├── WorkerDiedError                    the same example killed its file reader again and again
    ├── StagingError (also OSError)        the staging directory cannot be used
    ├── SharedMemoryError (also MemoryError)  no memory for the mini-batch slots
    ├── NoMpiError (also RuntimeError)     a worker process called MPI
    ├── NoChainerError (also ImportError)  Chainer is missing, or does not run here
    ├── TrainingError                      a training over MPI could not begin or go on
    └── PipelineError                      the worker processes could not start or were lost

    StagingWarning (RuntimeWarning)        staging is degraded; training goes on
    BadExampleWarning (RuntimeWarning)     an example was left out, as the user asked for
    BindingWarning (RuntimeWarning)        the launcher binds the ranks to few of the cores
    FailureWarning (RuntimeWarning)        if a rank fails, the other ranks will wait for ever

Each error carries its facts as attributes and survives pickling. When a dataset raises,
``next()`` raises that very exception and chains an :class:`ExampleError` to it as ``__cause__``. It
raises the :class:`ExampleError` alone for exceptions that would not be taken for errors: those that
``except Exception`` does not catch, such as SystemExit, and StopIteration.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

_SHOWN_EXAMPLES = 3
#: Whose lines are none of the user's; PyTorch's loader calls ours.
_PACKAGES = ("overlapiter.", "torch.utils.data.")


class OverlapError(Exception):
    """Root of every error that overlapiter raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the message and the attributes, without calling the constructor."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[OverlapError], args: tuple[Any, ...], facts: dict[str, Any]
) -> OverlapError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class OptionError(OverlapError, ValueError):
    """An argument cannot work.

    Attributes:
        option: Name of the argument.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option


class DatasetPicklingError(OverlapError, TypeError):
    """The dataset, or a function beside it, cannot be pickled, so it cannot be sent to the workers.

    Attributes:
        attribute: What cannot be pickled, for example ``"dataset.base._file"``.
    """

    def __init__(self, attribute: str, reason: str) -> None:
        text = (
            f"{attribute} cannot be sent to the file readers, since it cannot be pickled "
            f"({reason}). Open files, locks and connections on first use, when an example is read, "
            f"and leave them out in __getstate__; define functions and classes at the top level of "
            f"a module."
        )
        if "_lsprof" in sys.modules:  # part of cProfile
            text += " Under `python -m cProfile` those of the script itself are not found."
        super().__init__(text)
        self.attribute = attribute


class ExampleError(OverlapError):
    """An example could not be read.

    Attributes:
        index: Index of the example in the dataset.
        paths: The source files that were opened for it; may be empty.
        reason: What went wrong, in one line.
        worker_traceback: Traceback of the file reader process, as text; empty if it died.
    """

    def __init__(
        self, index: int, paths: tuple[str, ...], reason: str, worker_traceback: str
    ) -> None:
        text = (
            f"a file reader could not read {example_words(index, paths)}: "
            f"{reason.rstrip('.')}. "
            f"{'Check that file, or try' if paths else 'Try'} dataset[{index}] in the main process."
        )
        if worker_traceback:
            text += f"\n\nTraceback in the file reader:\n{worker_traceback}"
        super().__init__(text)
        self.index = index
        self.paths = paths
        self.reason = reason
        self.worker_traceback = worker_traceback


class TooManyBadExamplesError(OverlapError):
    """More examples could not be read than may be left out.

    Attributes:
        limit: How many different examples may be left out.
        examples: The error of each example that could not be read, in the order of reading.
    """

    def __init__(self, limit: int, examples: Sequence[ExampleError]) -> None:
        super().__init__(
            f"{len(examples)} examples could not be read, and at most {limit} may be left out: "
            f"{_first_words(examples)}. If all of them fail alike, look at the dataset's code, "
            f"else at these files and the store that they are on; to leave them out, raise the "
            f"limit in bad_examples=overlapiter.Skip(limit=...)."
        )
        self.limit = limit
        self.examples = tuple(examples)


class EmptyBatchError(OverlapError):
    """No example of a mini-batch could be read, and other ranks train on theirs meanwhile.

    Attributes:
        examples: The error of each of them.
    """

    def __init__(self, examples: Sequence[ExampleError]) -> None:
        super().__init__(
            f"{_first_words(examples)}. All {len(examples)} examples of this mini-batch are "
            f"left out; it cannot be passed over, since the other ranks would be a step behind and "
            f"wait for ever. Mend these files, or give a larger batch_size."
        )
        self.examples = tuple(examples)


class WorkerDiedError(OverlapError):
    """The same example was being read each time its file reader died.

    Attributes:
        index: Index of the example in the dataset.
        deaths: How many file readers died while they read it.
        exit_code: Exit code of the last one; ``-N`` means killed by signal N.
        paths: The source files that the dataset declares for it; may be empty.
        worker_traceback: Traceback that the last one reported before it ended; mostly empty.
    """

    def __init__(
        self,
        index: int,
        deaths: int,
        exit_code: int,
        paths: tuple[str, ...] = (),
        worker_traceback: str = "",
    ) -> None:
        cause = "a crash inside a C library is the usual cause"
        if exit_code >= 0:
            cause = "it called os._exit, or a C library in it called exit: look where"
        elif exit_code == -signal.SIGKILL:
            cause = "the kernel's out-of-memory killer is the usual cause: look at its log (dmesg)"
        text = (
            f"{deaths_words(deaths, exit_code)} while they read {example_words(index, paths)}. "
            f"Try dataset[{index}] in a process of its own; {cause}."
        )
        if worker_traceback:
            text += f"\n\nTraceback in the file reader:\n{worker_traceback}"
        super().__init__(text)
        self.index = index
        self.deaths = deaths
        self.exit_code = exit_code
        self.paths = paths
        self.worker_traceback = worker_traceback


def _first_words(examples: Sequence[ExampleError]) -> str:
    """Return the names of the first examples, and why they could not be read."""
    shown = [f"{example_words(each.index, each.paths)}: {each.reason}" for each in examples]
    more = len(shown) - _SHOWN_EXAMPLES
    return "; ".join(shown[:_SHOWN_EXAMPLES]) + (f"; and {more} more" if more > 0 else "")


def example_words(index: int, paths: Sequence[str]) -> str:
    """Return the name of an example, with its files if they are known."""
    return f"example {index} ({', '.join(paths)})" if paths else f"example {index}"


def described(error: BaseException) -> tuple[str, str]:
    """Return an exception in one line, and its traceback; whatever its own methods do."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return "".join(traceback.format_exception_only(type(error), error)).strip(), text
    except BaseException:  # user code: the class must do
        reason = f"{type(error).__name__}, which cannot be printed"
        return reason, "".join((*traceback.format_tb(error.__traceback__), f"{reason}\n"))


def deaths_words(deaths: int, exit_code: int, kind: str = "file readers") -> str:
    """Return how workers ended; ``-N`` means killed by signal N."""
    if exit_code >= 0:
        return f"{deaths} {kind} died (exit status {exit_code})"
    name = ""
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        name = f" {signal.Signals(-exit_code).name}"
    return f"{deaths} {kind} died (signal {-exit_code}{name})"


class StagingError(OverlapError, OSError):
    """The staging directory cannot be used.

    Attributes:
        directory: The staging directory.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(f"staging directory {directory}: {message}")
        self.directory = directory

    def __str__(self) -> str:
        """Return the message; OSError would format its arguments."""
        return str(self.args[0])


# MemoryError first: _rebuild calls __new__, and that of another base refuses a MemoryError.
class SharedMemoryError(MemoryError, OverlapError):
    """There is too little memory for the slots of the mini-batches.

    Attributes:
        wanted_bytes: How much could not be reserved.
    """

    def __init__(self, wanted_bytes: int, reason: str) -> None:
        super().__init__(
            f"cannot reserve {wanted_bytes / 1e6:.1f} MB of shared memory for a mini-batch "
            f"({reason}). Keep fewer mini-batches alive, lower n_prefetch (PyTorch: "
            f"prefetch_factor) or batch_size, or ask the job scheduler for more memory."
        )
        self.wanted_bytes = wanted_bytes


class PipelineError(OverlapError):
    """The worker processes could not be started, or could not be replaced."""


class NoMpiError(OverlapError, RuntimeError):
    """A worker process called MPI, which it does not have.

    Attributes:
        name: The function that was called.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was called in a worker process, and worker processes have no MPI; call it in "
            f"the trainer only: not in the dataset, and in a script that defines the dataset only "
            f'below `if __name__ == "__main__":`'
        )
        self.name = name


class NoChainerError(OverlapError, ImportError):
    """Chainer is missing, or does not run with this Python, NumPy or setuptools.

    Attributes:
        obstacle: What is in the way.
    """

    def __init__(self, obstacle: str, remedy: str) -> None:
        super().__init__(
            f"OverlapIterator, its extensions and converter, and mpi.create_communicator need "
            f"Chainer, and {obstacle}; {remedy}. All the rest of overlapiter runs without Chainer"
        )
        self.obstacle = obstacle


class StagingWarning(RuntimeWarning):
    """Staging is degraded: files are read from the source until it works again."""


class BadExampleWarning(RuntimeWarning):
    """An example could not be read and was left out, as the user asked for."""


class BindingWarning(RuntimeWarning):
    """The launcher binds the ranks of a node, and so their workers, to few of its cores."""


class FailureWarning(RuntimeWarning):
    """A rank that fails would leave the other ranks of the job waiting for ever."""


class TrainingError(OverlapError):
    """A training over MPI could not begin, or could not go on; the message says why."""


def warn(text: str, kind: type[Warning]) -> None:
    """Give a warning that names the user's line: the first one outside of this package."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_PACKAGES):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
