"""The errors: one root, facts as attributes, a next step in the message, and they travel."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import warnings

import pytest

import overlapiter
from overlapiter import errors

ERRORS = [
    errors.OptionError("capacity", "is zero; give room for some mini-batches"),
    errors.DatasetPicklingError("dataset.base._file", "TypeError: cannot pickle file"),
    errors.ExampleError(3, ("/lustre/a.jpg", "/lustre/b.jpg"), "OSError: gone", "Traceback: x"),
    errors.ExampleError(3, (), "ValueError: bad", "Traceback: x"),
    errors.WorkerDiedError(5, 3, -9),
    errors.StagingError("/nvme/me", "is not writable; choose a directory that you may write"),
    errors.SharedMemoryError(12_000_000, "No space left on device"),
    errors.PipelineError("the supervisor was killed; look at the system log"),
    errors.TooManyBadExamplesError(
        1, [errors.ExampleError(i, (f"/lustre/{i}.jpg",), "OSError: gone", "") for i in range(5)]
    ),
    errors.EmptyBatchError([errors.ExampleError(3, ("/lustre/a.jpg",), "OSError: gone", "")]),
    errors.NoMpiError("MPI.COMM_WORLD.bcast"),
    errors.NoChainerError("it is not installed", "install it with pip"),
    errors.TrainingError("/lustre/a.h5 cannot be read; mend it, or take it out of the list"),
]
BUILTIN = {
    "OptionError": ValueError,
    "DatasetPicklingError": TypeError,
    "ExampleError": Exception,
    "WorkerDiedError": Exception,
    "StagingError": OSError,
    "SharedMemoryError": MemoryError,
    "EmptyBatchError": Exception,
    "NoMpiError": RuntimeError,
    "NoChainerError": ImportError,
    "PipelineError": Exception,
    "TrainingError": Exception,
    "TooManyBadExamplesError": Exception,
}

each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def test_every_error_is_tried_here():
    tree = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.OverlapError)
    }
    assert (
        tree == {"OverlapError", *BUILTIN} == {"OverlapError", *(type(e).__name__ for e in ERRORS)}
    )


def test_the_tree_in_the_text_is_the_tree():
    for name, builtin in BUILTIN.items():
        (line,) = [line for line in errors.__doc__.splitlines() if f"── {name}" in line]
        assert (f"also {builtin.__name__}" in line) == (builtin is not Exception)


@each_error
def test_one_root_catches_every_error_and_a_builtin_where_there_is_one(error):
    assert isinstance(error, overlapiter.errors.OverlapError)
    assert isinstance(error, BUILTIN[type(error).__name__])


@each_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling_with_its_facts(error, protocol):
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(vars(again)) == repr(vars(error))  # errors are only equal to themselves
    assert again.args == error.args


@each_error
def test_an_error_can_be_copied_and_raised_again(error):
    with pytest.raises(type(error)) as caught:
        raise copy.copy(error)
    assert str(caught.value) == str(error)


@each_error
def test_the_message_is_a_sentence_and_not_a_tuple(error):
    assert not str(error).startswith("(")
    assert len(str(error)) > 20


def test_facts_are_attributes():
    assert ERRORS[0].option == "capacity"
    assert ERRORS[1].attribute == "dataset.base._file"
    assert ERRORS[2].index == 3
    assert ERRORS[2].paths == ("/lustre/a.jpg", "/lustre/b.jpg")
    assert ERRORS[2].worker_traceback == "Traceback: x"
    assert ERRORS[2].reason == "OSError: gone"
    assert (ERRORS[4].index, ERRORS[4].deaths, ERRORS[4].exit_code) == (5, 3, -9)
    assert ERRORS[5].directory == "/nvme/me"
    assert ERRORS[6].wanted_bytes == 12_000_000
    assert ERRORS[8].limit == 1
    assert [error.index for error in ERRORS[8].examples] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "facts", "next_step"),
    [
        (ERRORS[1], ["dataset.base._file", "cannot pickle file"], "__getstate__"),
        (ERRORS[2], ["example 3", "/lustre/a.jpg, /lustre/b.jpg", "gone"], "try dataset[3]"),
        (ERRORS[4], ["3 file readers", "signal 9", "example 5"], "Try dataset[5]"),
        (errors.WorkerDiedError(5, 3, 1), ["exit status 1"], "Try dataset[5]"),
        (ERRORS[5], ["/nvme/me"], "choose a directory"),
        (
            errors.WorkerDiedError(5, 3, -11, ("/lustre/e.jpg",), "Traceback: y"),
            ["signal 11 SIGSEGV", "example 5 (/lustre/e.jpg)", "Traceback: y"],
            "Try dataset[5]",
        ),
        (errors.WorkerDiedError(5, 3, -40), ["(signal 40)"], "Try dataset[5]"),
        (
            ERRORS[8],
            ["5 examples", "at most 1", "example 0 (/lustre/0.jpg): OSError: gone", "2 more"],
            "raise the limit in bad_examples=overlapiter.Skip(limit=...)",
        ),
        (ERRORS[9], ["All 1 examples", "/lustre/a.jpg"], "Mend these files"),
        (ERRORS[10], ["MPI.COMM_WORLD.bcast", "worker process"], "in the trainer only"),
        (
            ERRORS[6],
            ["12.0 MB", "No space left"],
            "lower n_prefetch (PyTorch: prefetch_factor) or batch_size",
        ),
    ],
)
def test_the_message_tells_the_facts_and_names_the_next_step(error, facts, next_step):
    for fact in facts:
        assert fact in str(error)
    assert next_step in str(error)


def test_an_example_without_files_has_no_empty_brackets():
    assert "example 3: ValueError" in str(ERRORS[3])


@pytest.mark.parametrize(
    "kind",
    [
        errors.StagingWarning,
        errors.BadExampleWarning,
        errors.BindingWarning,
        errors.FailureWarning,
    ],
)
def test_our_warnings_can_be_filtered_as_runtime_warnings(kind):
    with pytest.warns(RuntimeWarning):
        warnings.warn("the disk is full", kind, stacklevel=1)


def test_a_profiler_is_named_where_there_is_one():
    program = (
        "from overlapiter.errors import DatasetPicklingError\n"
        "print('cProfile' in str(DatasetPicklingError('dataset', 'no')))\n"
    )
    for options, is_named in ([], "False"), (["-m", "cProfile"], "True"):
        command = [sys.executable, *options, "/dev/stdin"]
        told = subprocess.run(command, input=program, capture_output=True, text=True, check=True)
        assert told.stdout.splitlines()[0] == is_named
