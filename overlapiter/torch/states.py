"""What a loader saves amid an epoch, and how it goes on from there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from overlapiter.errors import OptionError
from overlapiter.order import Indices
from overlapiter.scatter import ScatteredOrder, ScatterState
from overlapiter.torch.orders import (
    Draws,
    Keys,
    OrderedSampler,
    draws_of,
    epoch_of,
    generators_of,
    put_draws,
    ranks_of,
    samplers_of,
    size_of,
)

_VERSION = 1


class Taken(NamedTuple):
    """What was taken of an epoch."""

    n_batches: int = 0  # those included that failed
    n_examples: int = 0  # in those since the start or the resumption

    def and_also(self, keys: Keys) -> Taken:
        """Return what it is after one more mini-batch."""
        n_keys = len(keys) if isinstance(keys, (list, tuple)) else 1
        return Taken(self.n_batches + 1, self.n_examples + n_keys)


class Progress:
    """How far an iteration over a loader is, made before it draws. It outlives the iterator."""

    def __init__(self, loader: data.DataLoader[Any]) -> None:
        self.draws = draws_of(loader)  # the generators before the epoch
        self.has_base_seed = True  # whether it drew a base seed from them
        sampler = samplers_of(loader)[-1]
        self.sampler_epoch = epoch_of(sampler)
        self.number: int = max(loader._n_begun, self.sampler_epoch or 0)  # of the epoch
        #: The sampler's order, its place of resumption, and the order of the whole epoch.
        self.scattered: tuple[ScatteredOrder, int, Indices] | None = None
        #: Examples after which the next epoch begins, for a sampler that gives more.
        self.epoch_size = _epoch_size_of(loader)
        if isinstance(sampler, OrderedSampler):
            self.number = sampler.epoch
            whole = sampler.whole()
            self.scattered = sampler.order, sampler.start, whole
            self.epoch_size = max(1, len(whole))  # that of the rest is less
        self.taken = Taken()  # replaced as a whole, so an interruption leaves no mixture
        self.is_over = False  # the epoch

    def count(self, keys: Keys) -> None:
        """Note that a mini-batch was taken."""
        self.taken = self.taken.and_also(keys)

    @property
    def position(self) -> int:
        """Examples of the epoch before the next mini-batch."""
        return self.position_after(self.taken)

    def position_after(self, taken: Taken) -> int:
        """Return the same for when so much is taken."""
        return taken.n_examples + (0 if self.scattered is None else self.scattered[1])

    def epochs(self, position: int, n: int) -> list[int]:
        """Return the epochs of ``n`` examples from a position on, for their random states."""
        size = self.epoch_size
        return [self.number + at // size for at in range(position, position + n)]


def _epoch_size_of(loader: data.DataLoader[Any]) -> int:
    """Return how many examples the dataset has, or a pass of the sampler where that is fewer."""
    *outer, sampler = samplers_of(loader)
    gives_keys = outer or not loader._auto_collation  # and not mini-batches
    sizes = size_of(loader.dataset), size_of(sampler) if gives_keys else -1
    size = min((each for each in sizes if each > 0), default=sys.maxsize)
    if outer and type(outer[-1]) is data.BatchSampler and outer[-1].drop_last:
        size -= size % outer[-1].batch_size
    return max(1, size)


#: What :meth:`DataLoader.state_dict` returns: what is in a :class:`Progress` as plain numbers and
#: tensors, in lists, tuples and a dict of no class of ours, which ``torch.load`` takes as they are.
State = dict[str, Any]


def _facts_of(sampler: Any) -> dict[str, int]:
    """Return what is known of an innermost sampler and its order, the same for all ranks."""
    if isinstance(sampler, OrderedSampler):  # its own state says more
        return {}
    if isinstance(sampler, DistributedSampler):
        return {name: getattr(sampler, name) for name in ("seed", "shuffle", "drop_last")}
    replacement = isinstance(sampler, data.RandomSampler) and sampler.replacement
    return {"replacement": replacement, "length": size_of(sampler)}


def check_state(loader: data.DataLoader[Any], state: State) -> None:
    """Refuse what does not fit a loader.

    Raises:
        OptionError: It is of another dataset or order, or no state at all.
    """
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise OptionError("state_dict", "is none of overlapiter.torch.DataLoader's; give one")
    size = size_of(loader.dataset)
    if state.get("dataset_size", size) != size:
        raise OptionError(
            "state_dict",
            f"is of a dataset of {state['dataset_size']} examples, this one has {size}; resume "
            f"with the dataset that it was taken with",
        )
    ours = state_of(loader, Progress(loader))
    if lacking := ", ".join(sorted(ours.keys() - state.keys())):
        raise OptionError("state_dict", f"lacks {lacking}; give all that state_dict() has returned")
    _check_sampler(loader, state, ours)
    was, now = state["batch"], ours["batch"]
    if was is not None and tuple(was) != now and state["n_taken"]:
        raise OptionError(
            "state_dict",
            f"is of mini-batches of {was[0]} examples in {was[1]} ranks, here they have {now[0]} "
            f"in {now[1]}, so {state['n_taken']} of them are others; give the same batch_size, or "
            "scatter_order as the sampler",
        )
    # A sampler that counts epochs may make its generator when it is first asked, and seed it anew.
    n_excused = epoch_of(samplers_of(loader)[-1]) is not None
    n_draws = 0 if state["draws"] is None else len(state["draws"][1])
    if state["draws"] is not None and abs(n_draws - len(generators_of(loader))) > n_excused:
        words = f"is of {n_draws} generators; give the loader and sampler as many"
        raise OptionError("state_dict", words)


def _check_sampler(loader: data.DataLoader[Any], state: State, ours: State) -> None:
    is_scattered = ours["scattered"] is not None
    has_begun = state["n_taken"] or state["sampler_epoch"] is not None
    is_other = has_begun and state["sampler"] != ours["sampler"]
    if is_other or is_scattered != (state["scattered"] is not None):
        raise OptionError(
            "state_dict",
            f"is of another kind of sampler, {state['sampler']}, here it is {ours['sampler']}; "
            f"give the same one",
        )
    facts = state["sampler_facts"], ours["sampler_facts"]
    if has_begun and facts[0] != facts[1]:
        sides = [", ".join(f"{name}={each[name]}" for name in each) for each in facts]
        raise OptionError(
            "state_dict",
            f"is of a {state['sampler']} with {sides[0]}, here it has {sides[1]}; give the same",
        )
    if is_scattered:
        order = samplers_of(loader)[-1].order
        order.resume(ScatterState(*state["scattered"]), state["dataset_size"])


def state_of(loader: data.DataLoader[Any], epoch: Progress) -> State:
    """Return the state amid an epoch, or before it."""
    size, sampler = size_of(loader.dataset), samplers_of(loader)[-1]
    kind, scattered = type(sampler), None
    batch_size = getattr(loader._index_sampler, "batch_size", None)
    if not isinstance(batch_size, int):  # that of a mini-batch is not known
        batch_size = None
    if epoch.scattered is not None:
        kind = OrderedSampler  # for any number of ranks
        order, _, whole = epoch.scattered
        scattered = tuple(order.state_of(epoch.number, epoch.position, whole, size))
    return {
        "version": _VERSION,
        "epoch": epoch.number,
        "n_taken": epoch.taken.n_batches,
        "draws": None if scattered else tuple(epoch.draws),
        "dataset_size": size,
        "sampler": kind.__name__,
        "sampler_facts": _facts_of(sampler),
        "sampler_epoch": epoch.sampler_epoch,
        "scattered": scattered,
        "batch": None if scattered else (batch_size, ranks_of(loader)),
        "has_base_seed": epoch.has_base_seed,
    }


def check_taken(epoch: Progress, state: State) -> None:
    """Check that a sampler gave all mini-batches that were to be passed over.

    Raises:
        OptionError: It did not.
    """
    if epoch.taken.n_batches < state["n_taken"]:
        raise OptionError(
            "state_dict",
            f"stands after mini-batch {state['n_taken']} of an epoch, but the sampler gives "
            f"{epoch.taken.n_batches}; give the sampler that it was taken with",
        )


@contextlib.contextmanager
def resumed(loader: data.DataLoader[Any]) -> Iterator[State | None]:
    """Bring samplers and generators to where the epoch of a loaded state began.

    What the epoch draws is drawn again inside; afterwards PyTorch's own generator is as before.
    """
    state: State | None = loader._resume
    if state is None:
        yield None
        return
    loader._n_begun = state["epoch"]
    sampler = samplers_of(loader)[-1]
    if isinstance(sampler, OrderedSampler):
        scattered = ScatterState(*state["scattered"])
        sampler.set_epoch(scattered.epoch)
        sampler.resumed = sampler.order.resume(scattered, size_of(loader.dataset))
    elif state["sampler_epoch"] is not None:
        sampler.set_epoch(state["sampler_epoch"])
    before, draws = torch.get_rng_state(), Draws(*state["draws"] or (None, []))
    put_draws(loader, draws)
    try:
        yield {**state, "n_taken": 0} if state["scattered"] else state
        loader._resume = None  # an epoch that cannot begin is tried again from here
    finally:
        if draws.global_state is not None:
            torch.set_rng_state(before)
