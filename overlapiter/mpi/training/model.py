"""What training needs of a model, and how one is loaded from the user's file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from overlapiter.errors import OptionError
from overlapiter.objective import Objective, Vector

#: Features (one array for each input of the model) and labels of some examples.
Batch = tuple[Any, ...]


class Model(Protocol):
    """A model as one flat vector: its ``n`` parameters, then its persistent state.

    The persistent state, such as the statistics of BatchNormalization, changes while the model is
    trained and has no gradient; it is synchronised with the weights.

    A user's ``build_model()`` may return an object of this kind itself, for a framework that
    overlapiter does not know.

    Attributes:
        layout: Names, shapes and types of parameters and state, as text: ranks compare it.
        measure_names: What :meth:`gradient` and :meth:`evaluate` return; the first is the loss.
        n_state: Length of the persistent state.
    """

    layout: str
    measure_names: Sequence[str]
    n_state: int

    def weights(self) -> Vector:
        """Return a copy of the vector, of shape ``(n + n_state,)``."""

    def load(self, weights: Vector) -> None:
        """Copy a vector into the model."""

    def gradient(self, batch: Batch, gradient: Vector, seed: int) -> Sequence[float]:
        """Compute the gradient of the mean loss of a mini-batch.

        Args:
            batch: Features and labels.
            gradient: Where it is written, and behind it the persistent state as it is afterwards.
            seed: What is random in the model follows from it.

        Returns:
            The measures, each the mean over the mini-batch.
        """

    def evaluate(self, batch: Batch) -> Sequence[float]:
        """Return the measures of a mini-batch without training."""

    def names_of_bad(self) -> list[str]:
        """Return the names of the parameters that are not finite."""

    def save(self, path: str) -> None:
        """Write the model for its own framework."""


def digest_of(model: Model) -> int:
    """Return a number by which ranks compare their models."""
    return zlib.crc32(model.layout.encode())


def words_of_bad(model: Model) -> str:
    """Return which parameters are not finite, as a part of a sentence; empty if all are."""
    names = ", ".join(model.names_of_bad()[:3])
    return f"these parameters are not finite: {names}" if names else ""


#: The class in ``overlapiter.FRAMEWORK.model`` for a model's base class.
_ADAPTERS = {"chainer.Link": "ChainerModel", "torch.Module": "TorchModel"}

#: Returns the user's model; called once for each Model that is needed.
Builder = Callable[[], Any]


def module_from(path: str, option: str) -> ModuleType:
    """Import a Python file of the user's, whose folder stays on the path, as that of a script does.

    Raises:
        OptionError: There is none, or it cannot be imported.
    """
    if not os.path.isfile(path):
        raise OptionError(option, f"there is no file {path}")
    name = f"overlapiter_user_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OptionError(option, f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as for any import: pickle and dataclasses look there
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        words = f"{path} cannot be imported ({type(error).__name__}: {error})"
        if isinstance(error, ModuleNotFoundError) and error.name == "chainer":
            words += (
                "; install it with overlapiter, in its folder: pip install "
                "--build-constraint requirements/build.txt '.[train]'"
            )
        raise OptionError(option, words) from error
    return module


def builder_from(model: str | os.PathLike[str] | Builder) -> Builder:
    """Return ``build_model`` of a Python file, or the function that was given.

    Raises:
        OptionError: There is none.
    """
    if callable(model):
        return model
    path = os.fspath(model)
    build = getattr(module_from(path, "model"), "build_model", None)
    if not callable(build):
        raise OptionError("model", f"{path} has no function build_model(); define one")
    return build  # type: ignore[no-any-return]  # the user's


def wrapped(build: Builder, objective: Objective, seed: int) -> Model:
    """Return what ``build_model()`` returns as a :class:`Model`, its first values by the seed.

    Raises:
        OptionError: It is no ``chainer.Link``, ``torch.nn.Module``, or Model.
    """
    np.random.seed(seed & 0xFFFFFFFF)  # Chainer's initializers use it
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    built = build()
    for kind in type(built).__mro__:
        framework = kind.__module__.partition(".")[0]
        if adapter := _ADAPTERS.get(f"{framework}.{kind.__name__}"):
            home = importlib.import_module(f"overlapiter.{framework}.model")
            return getattr(home, adapter)(built, objective)  # type: ignore[no-any-return]  # by name
    if all(hasattr(built, name) for name in ("gradient", "evaluate", "weights", "load")):
        return built  # type: ignore[no-any-return]  # as far as can be seen
    raise OptionError(
        "model",
        f"build_model() returned a {type(built).__name__}; return a chainer.Link, a "
        f"torch.nn.Module, or an object with the methods of overlapiter.mpi.training.model.Model",
    )
