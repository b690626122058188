"""The settings of a training: one table for the command line, TOML files, and the Python API."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from overlapiter.errors import OptionError

from .rules import RULES

LOSSES = ("softmax_cross_entropy", "mean_squared_error", "sigmoid_cross_entropy", "model")
ALGORITHMS = ("downpour", "easgd", "gem")
VALIDATIONS = ("thread", "workers", "inline")
METRICS = ("accuracy",)
#: Begins the names of values that are arguments of ``build_model()``.
_MODEL = "model."


def _field(default: Any, help_: str, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_, **more})


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that decides how a run goes, beside the model and the files.

    The help texts in the metadata of each field say what it means; the command line shows them.

    Raises:
        OptionError: A value cannot work.
    """

    epochs: int = _field(10, "how often each example is used", least=1)
    batch: int = _field(32, "examples of a mini-batch of one worker", least=1)
    optimizer: str = _field(
        "adam",
        "what is done with a gradient: by the server or, with easgd and gem, by the workers",
        choices=(*RULES,),
    )
    learning_rate: float = _field(0.001, "step size of the optimizer", least=0.0)
    momentum: float = _field(0.9, "of the optimizer momentum", least=0.0)
    schedule: str = _field(
        "", "learning rate over the epochs: 'cosine', or '10:0.1,20:0.01' for a tenth of it from "
        "epoch 10 on and a hundredth from epoch 20 on",
    )  # fmt: skip
    loss: str = _field(
        "softmax_cross_entropy",
        "what is minimised; model: the link returns its loss itself",
        choices=LOSSES,
    )
    metrics: tuple[str, ...] = _field((), "what else is measured", choices=METRICS)
    features: tuple[str, ...] = _field(
        ("features",), "HDF5 data sets that are the inputs of the model, in its order"
    )
    labels: str = _field("labels", "HDF5 data set of what the model is to say")
    data: str = _field("", "FILE.py:CLASS, a data class of your own in place of HDF5 files")
    algorithm: str = _field("downpour", "how workers and server work together", choices=ALGORITHMS)
    synchronous: bool = _field(False, "downpour: wait for all workers, and apply their mean")
    quorum: float = _field(1.0, "synchronous: the share of the workers to wait for", most=1.0)
    sync_every: int = _field(1, "mini-batches of a worker between two exchanges", least=1)
    beta: float = _field(
        0.9, "easgd: strength of the elastic force, divided by the workers", least=0.0, most=1.0
    )
    gem_eta: float = _field(0.01, "gem: share of a worker's own steps that it sends", least=0.0)
    gem_kappa: float = _field(2.0, "gem: how far the centre may move for its momentum", least=0.0)
    masters: int = _field(
        0, "sub-servers, each with its part of the workers; for many workers", least=0
    )
    validation: str = _field(
        "thread", "where the validation files are evaluated", choices=VALIDATIONS
    )
    early_stopping: str = _field("", "stop when this no longer improves, for example val_loss")
    patience: int = _field(3, "epochs without improvement before that", least=1)
    target: str = _field("", "stop when this is reached, for example val_accuracy=0.97")
    seed: int = _field(0, "the shuffling, and all that is random, follow from it", least=0)
    shuffle: bool = _field(True, "shuffle files and examples, anew for each epoch")
    piece_examples: int = _field(
        0, "files are divided into pieces of at most so many examples; 0: by the data", least=0
    )
    staging: str = _field("", "directory on the node's own disk where files are staged ahead")
    source: str = _field("", "root of the files on the slow store, for --staging")
    worker_timeout: float = _field(
        300.0,
        "seconds of silence after which the work of a worker is given to others",
        least=0.1,
        most=1e8,  # a thread can wait for ten times as long
    )
    checkpoint_seconds: float = _field(60.0, "time between two checkpoints", least=0.0)
    device: str = _field(
        "cpu", "where the model computes: cpu, or a GPU: cuda:0 for PyTorch, @cupy:0 for Chainer"
    )
    out: str = _field("result", "directory for what the run writes")
    trace: str = _field("", "file for a trace in Chrome's format, for Perfetto")

    def __post_init__(self) -> None:
        """Check every value that can be checked by itself."""
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        self._check_schedule()
        self.goal()
        if self.early_stopping and self.early_stopping not in self.monitored:
            known = ", ".join(self.monitored)
            raise OptionError("early_stopping", f"{self.early_stopping!r} is none of {known}")
        if bool(self.staging) != bool(self.source):
            raise OptionError("staging", "needs --source, the root of the files, and vice versa")
        if self.masters and self.algorithm != "downpour":
            words = f"average gradients, and {self.algorithm} sends none; use --algorithm downpour"
            raise OptionError("masters", words)
        if self.masters and self.synchronous:
            words = "are synchronous within their groups already; leave --synchronous out"
            raise OptionError("masters", words)
        if self.synchronous and self.algorithm != "downpour":
            words = f"{self.algorithm} has no such mode; leave it out, or use --algorithm downpour"
            raise OptionError("synchronous", words)
        if self.momentum >= 1:
            raise OptionError("momentum", f"{self.momentum} is too large; give less than 1")
        if self.quorum <= 0:
            raise OptionError("quorum", f"{self.quorum} is no share of the workers; give 0.5 to 1")

    @property
    def monitored(self) -> tuple[str, ...]:
        """The names of what an epoch's record has that can stop a run."""
        own = ("loss", *self.metrics)
        return (*own, *(f"val_{name}" for name in own))

    @property
    def has_local_steps(self) -> bool:
        """Whether a worker takes steps of its own, and so has more than the server's weights."""
        return self.algorithm != "downpour" or self.sync_every > 1

    def to_toml(self) -> str:
        """Return the settings as a TOML file, with a comment for each."""
        lines = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            value = list(value) if isinstance(value, tuple) else value
            text = json.dumps(value, ensure_ascii=False)
            is_text = text == text.encode(errors="ignore").decode()  # a path may have other bytes
            mark = "" if is_text else "# "
            lines.append(f"{mark}{field.name} = {text}  # {field.metadata['help']}")
        return "\n".join(lines) + "\n"

    def goal(self) -> tuple[str, float] | None:
        """Return name and value of the target; None if there is none.

        Raises:
            OptionError: The text is no target.
        """
        if not self.target:
            return None
        name, _, value = self.target.partition("=")
        with contextlib.suppress(ValueError):
            if name in self.monitored:
                return name, float(value)
        words = f"write NAME=VALUE with a NAME of {', '.join(self.monitored)}"
        raise OptionError("target", f"{self.target!r}: {words}")

    def rate_in(self, epoch: int) -> float:
        """Return the learning rate of an epoch, the first one being 1."""
        if self.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * (epoch - 1) / self.epochs))
        else:
            factor = next((f for begin, f in reversed(self._steps()) if epoch >= begin), 1.0)
        return self.learning_rate * factor

    def _steps(self) -> list[tuple[int, float]]:
        """Return from which epochs on the schedule has which factors."""
        pairs = [pair.split(":") for pair in self.schedule.split(",")] if self.schedule else []
        return sorted((int(epoch), float(factor)) for epoch, factor in pairs)

    def _check_schedule(self) -> None:
        with contextlib.suppress(ValueError):
            if self.schedule == "cosine" or all(0 <= f < math.inf for _, f in self._steps()):
                return
        raise OptionError("schedule", f"{self.schedule!r}: write 'cosine', or '10:0.1,20:0.01'")


def _check(field: dataclasses.Field[Any], value: object) -> None:
    name, limits = field.name, field.metadata
    kind = type(field.default)
    if type(value) is not kind:
        raise OptionError(name, f"{value!r} is no {kind.__name__}; for example {field.default!r}")
    values = value if isinstance(value, tuple) else (value,)
    for each in values:
        if "choices" in limits and each not in limits["choices"]:
            raise OptionError(name, f"{each!r} is none of {', '.join(limits['choices'])}")
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(name, f"{value!r} is no number to work with")
    least = limits.get("least")
    if isinstance(value, (int, float)) and least is not None and value < least:
        raise OptionError(name, f"{value!r} is too small; give at least {least}")
    if isinstance(value, float) and value > limits.get("most", math.inf):
        raise OptionError(name, f"{value!r} is too large; give at most {limits['most']}")


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of settings, and the arguments of ``build_model()``."""
    of_model = {k.removeprefix(_MODEL): v for k, v in values.items() if k.startswith(_MODEL)}
    return {k: v for k, v in values.items() if not k.startswith(_MODEL)}, of_model


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Return settings from values by name, as a TOML file or a caller has them.

    Raises:
        OptionError: A name is unknown, or a value cannot work.
    """
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    ready = {}
    for name, value in values.items():
        if name not in fields:
            raise OptionError(name, f"is no setting; there are {', '.join(fields)}")
        default = fields[name].default
        if isinstance(default, tuple) and isinstance(value, str):
            value = tuple(filter(None, (word.strip() for word in value.split(","))))
        elif isinstance(default, tuple) and isinstance(value, Sequence):
            value = tuple(value)
        elif isinstance(default, float) and type(value) is int:
            value = float(value)
        elif isinstance(default, str) and isinstance(value, os.PathLike):
            value = os.fspath(value)
        ready[name] = value
    return Settings(**ready)


def read_toml(path: str) -> dict[str, Any]:
    """Return the settings in a TOML file.

    Raises:
        OptionError: It cannot be read.
    """
    try:
        toml = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10
        toml = importlib.import_module("tomli")
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = toml.load(file)
    except (OSError, ValueError) as error:
        raise OptionError("settings", f"{path} cannot be read ({error})") from None
    return found


def comment(command: str) -> str:
    """Return a command as a comment in a TOML file, which is one line whatever the command has."""
    return f"# {command if command.isprintable() else json.dumps(command)}\n"


def is_better(name: str, new: float, old: float) -> bool:
    """Return whether a value of a loss or a metric is better than another one."""
    return new < old if name.endswith("loss") else new > old
