"""The trials of a search, in a journal that all groups and all later runs share.

Groups meet in Optuna's journal file alone. Each asks for its next trial there, so a group that is
lost leaves nothing behind but a trial that does not end; another group finds it, and trains its
settings on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from overlapiter.errors import OptionError, TrainingError

from .asked import Asked
from .space import Space, Values

_JOURNAL = "study.journal"
#: A trial that has no owner after so long belongs to a group that was lost as it began.
_OWNERLESS_SECONDS = 30.0
#: So often a trial is done again that has lost ranks; it may be what stops or ends them.
_MOST_LOSSES = 2
#: What becomes of a trial, the best first.
_STATES = ("complete", "pruned", "running", "failed")
#: So many trials may fail before any succeeds; then something else than the settings is wrong.
_MOST_FAILURES = 5


class Trial(NamedTuple):
    """A trial, whatever became of it."""

    number: int  # from 0, in the order of their starts
    state: str  # "complete", "pruned", "failed" or "running"
    value: float | None  # of the metric after the last epoch; None if there was none
    params: Values  # the searched settings
    n_epochs: int  # that were trained
    seconds: float  # from its start to its end
    reason: str  # why it failed
    out: str  # its directory


class Study:
    """The trials of one search, seen by one group; see :func:`.run.search` for the arguments.

    Attributes:
        timeout_seconds: After which silence of its group a trial is done again.

    Raises:
        OptionError: ``out`` holds another search, or cannot be made.
        ImportError: Optuna is missing.
    """

    def __init__(
        self,
        out: str,
        space: Space,
        metric: str,
        n_trials: int,
        seed: int,
        *,
        is_pruning: bool = True,
    ) -> None:
        import optuna

        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            os.makedirs(out, exist_ok=True)
        except OSError as error:
            raise OptionError("out", f"{out} cannot be written ({error})") from error
        self._out, self.space, self.metric = out, space, metric
        self._n_trials, self._seed = n_trials, seed
        self.timeout_seconds = math.inf
        self._seen: dict[int, tuple[object, float]] = {}
        self.is_maximized = not metric.endswith("loss")
        pruners = optuna.pruners
        pruner = pruners.MedianPruner(n_warmup_steps=2) if is_pruning else pruners.NopPruner()
        journal, path = optuna.storages.journal, os.path.join(out, _JOURNAL)
        # The other kind of lock is never broken where the path is relative.
        lock = _MendingLock(path, journal.JournalFileOpenLock(path))
        try:
            self._study = optuna.create_study(
                study_name="search",
                storage=journal.JournalStorage(journal.JournalFileBackend(path, lock)),
                direction="maximize" if self.is_maximized else "minimize",
                pruner=pruner,
                load_if_exists=True,
            )
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            reason = f"{path} cannot be read ({type(error).__name__}: {error})"
            words = "it is damaged, or of another version of Optuna; name another --out"
            raise OptionError("out", f"{reason}: {words}") from error
        for name, ours in (("space", space.to_json()), ("metric", metric)):
            theirs = self._study.user_attrs.get(name)
            if theirs is None:
                self._study.set_user_attr(name, ours)
            elif theirs != ours:
                message = f"{out} holds a search with {name} {theirs}; name another --out"
                raise OptionError("out", message)

    # --- asking ---------------------------------------------------------------------------------

    def ask(
        self,
        owner: str,
        is_lost: Callable[[str], bool],
        say: Callable[[str], object] = lambda _text: None,
    ) -> Asked | None:
        """Return the next trial; None when there is nothing to begin now.

        Args:
            owner: Who trains it: the name of the run before the first colon, the number of the
                rank behind the last one.
            is_lost: Takes an owner; says whether it will never end its trial.
            say: Called with the trials that are given to others, since their groups are silent.
        """
        self._recover(owner, is_lost, say)
        if sum(_state_of(each) != "waiting" for each in self._wanted()) >= self._n_trials:
            return None
        trial = self._study.ask()
        trial.set_user_attr("owner", owner)
        if sum(each.number < trial.number for each in self._wanted()) >= self._n_trials:
            self._fail(trial.number, "surplus", "")  # another group was faster
            return None
        # So that what is proposed does not depend on which group asks.
        with _experimental():
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=(self._seed * 100_003 + trial.number) % 2**32, constant_liar=True
            )
        values = self.space.suggest(trial)
        values["out"] = self._folder_of(trial)
        if values.get("trace"):  # one file for each trial
            root, ending = os.path.splitext(values["trace"])
            values["trace"] = f"{root}.{os.path.basename(values['out'])}{ending}"
        return Asked(trial, values, self.metric, self.timeout_seconds)

    def _folder_of(self, trial: Any) -> str:
        """Return the directory of a trial: that of the one that it continues."""
        first = trial.user_attrs.get("continues", trial.number)
        return os.path.join(self._out, "trials", f"{first:04}")

    def is_over(self) -> bool:
        """Return whether all trials have ended."""
        states = [_state_of(each) for each in self._wanted()]
        n_left = sum(state in ("running", "waiting") for state in states)
        return len(states) - n_left >= self._n_trials and "running" not in states

    def _wanted(self) -> list[Any]:
        """Return Optuna's trials, without those that were done again, or are too many.

        One that is marked as lost may come to its end, for all that.
        """
        no_results = {"lost", "surplus"}
        return [
            each
            for each in self._study.get_trials(deepcopy=False)
            if _state_of(each) != "failed" or no_results.isdisjoint(each.user_attrs)
        ]

    # --- telling --------------------------------------------------------------------------------

    def tell(self, asked: Asked) -> Trial | None:
        """Record how a trial has ended, by its last epoch; return it, unless others do it again.

        Raises:
            TrainingError: It has failed, as all others before.
        """
        states = self._optuna.trial.TrialState
        if asked.value is None or not math.isfinite(asked.value):
            asked.reason = asked.reason or f"{self.metric} is {asked.value} after the last epoch"
        if asked.reason:
            self._fail(asked.number, "failure", asked.reason)
        else:
            result = {"state": states.PRUNED} if asked.is_pruned else {"values": asked.value}
            with contextlib.suppress(ValueError, RuntimeError):  # it was given to another group
                self._study.tell(asked.number, **result)
        trials = self.trials()
        n_failed = sum(each.state == "failed" for each in trials)
        if n_failed >= _MOST_FAILURES and {each.state for each in trials} <= {"failed", "running"}:
            raise TrainingError(
                f"the first {n_failed} trials have all failed, the last one since {asked.reason}"
            )
        return next((each for each in trials if each.number == asked.number), None)

    def _fail(self, number: int, key: str, reason: str) -> bool:
        """Record that a trial has failed; return False if it has ended otherwise meanwhile."""
        storage = self._study._storage  # Optuna offers no other way to explain the failure
        trial_id = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        try:
            storage.set_trial_user_attr(trial_id, key, reason or True)
            self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        except (ValueError, RuntimeError):  # another group has done so
            return False
        return True

    def _recover(
        self, asker: str, is_lost: Callable[[str], bool], say: Callable[[str], object]
    ) -> None:
        """Have the trials of lost groups done again, from their last checkpoints.

        A silent group may come back and write; what it has begun is begun anew elsewhere.
        """
        for trial in self._wanted():
            if _state_of(trial) != "running":
                continue
            owner = trial.user_attrs.get("owner")
            age_seconds = time.time() - trial.datetime_start.timestamp()
            rank = (owner or "").rpartition(":")[2]
            if age_seconds > _OWNERLESS_SECONDS if owner is None else is_lost(owner):
                is_of_run = owner is not None and owner.split(":")[0] == asker.split(":")[0]
                self._put_back(trial, f"rank {rank} is dead" if is_of_run else "")
            elif self._is_silent(trial):
                reason = f"rank {rank} is silent for {self.timeout_seconds:g} s"
                say(f"{reason}; another group does trial {trial.number}")
                self._put_back(trial, reason, is_anew=True)

    def _is_silent(self, trial: Any) -> bool:
        """Return whether a trial has given no sign of life since this group saw it first."""
        signs = len(trial.user_attrs), trial.user_attrs.get("beat"), len(trial.intermediate_values)
        before, since = self._seen.get(trial.number, (None, 0.0))
        if signs != before:
            self._seen[trial.number] = signs, time.monotonic()
            return False
        return time.monotonic() > since + self.timeout_seconds

    def put_back(self, asked: Asked, reason: str = "") -> None:
        """Have a trial done again, from its last checkpoint.

        The reason says why ranks were lost that trained it; empty if they end in order.
        """
        trials = self._study.get_trials(deepcopy=False)
        self._put_back(next(each for each in trials if each.number == asked.number), reason)

    def _put_back(self, trial: Any, reason: str = "", *, is_anew: bool = False) -> None:
        """Have a trial done again, unless it has cost ranks as often as any may."""
        more = {"losses": trial.user_attrs.get("losses", 0) + bool(reason)}
        if more["losses"] > _MOST_LOSSES:
            self._fail(trial.number, "failure", f"{reason}, as others were before")
        elif self._fail(trial.number, "lost", "") and trial.params:
            if not is_anew:
                more["continues"] = trial.user_attrs.get("continues", trial.number)
                more["epochs"] = trial.intermediate_values
            self._study.enqueue_trial(trial.params, user_attrs=more)

    # --- results --------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return the trials by their numbers; those that were done again only once."""
        trials = [_trial_of(each, self._folder_of(each)) for each in self._wanted()]
        return [trial for trial in trials if trial.state != "waiting"]

    def ranked(self) -> list[Trial]:
        """Return the trials, complete ones first, the best before the others."""
        sign = -1.0 if self.is_maximized else 1.0

        def key(trial: Trial) -> tuple[int, float, int]:
            return _STATES.index(trial.state), sign * (trial.value or 0.0), trial.number

        return sorted(self.trials(), key=key)

    def best(self) -> Trial | None:
        """Return the complete trial with the best value; None if there is none."""
        return next((each for each in self.ranked() if each.state == "complete"), None)


class _MendingLock:
    """Optuna's lock of its journal; it cuts off half a line, which a full disk may have left.

    What is written next would become a part of that line, and nothing could read the journal.
    """

    def __init__(self, path: str, lock: Any) -> None:
        self._path = path
        self._lock = lock
        self.release = lock.release

    def acquire(self) -> bool:
        """Wait for the lock, and mend the journal."""
        self._lock.acquire()
        try:
            with open(self._path, "r+b") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.seek(0)
                        file.truncate(file.read().rfind(b"\n") + 1)
        except BaseException:
            self.release()
            raise
        return True


def journal_bytes(out: str) -> int:
    """Return how large the journal of a search is; it grows while a group lives."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.getsize(os.path.join(out, _JOURNAL))
    return 0


def _state_of(trial: Any) -> str:
    name = str(trial.state.name).lower()
    return "failed" if name == "fail" else name


def _trial_of(trial: Any, out: str) -> Trial:
    values = trial.intermediate_values
    ended = trial.datetime_complete or trial.datetime_start
    return Trial(
        number=trial.number,
        state=_state_of(trial),
        value=values[max(values)] if values else None,
        params=trial.params,
        n_epochs=max(values) if values else 0,
        seconds=(ended - trial.datetime_start).total_seconds() if ended else 0.0,
        reason=str(trial.user_attrs.get("failure", "")),
        out=out,
    )


@contextlib.contextmanager
def _experimental() -> Iterator[None]:
    """Have Optuna 4 not warn of what Optuna 5 does by default."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*experimental")
        yield
