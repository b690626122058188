"""A loader that is saved amid an epoch goes on with the very mini-batches that were to come."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

from overlapiter import scatter_order  # noqa: E402
from overlapiter.errors import DatasetPicklingError, OptionError  # noqa: E402
from overlapiter.scatter import ScatteredOrder  # noqa: E402
from overlapiter.torch import Communicator, DataLoader  # noqa: E402
from tests.torch import torch_datasets as D  # noqa: E402
from tests.torch.comparing import assert_same  # noqa: E402
from tests.torch.conftest import Pair  # noqa: E402


def saved(state: Any, map_location: str | None = None) -> Any:
    """Send a state through a file, as a checkpoint is."""
    stream = io.BytesIO()
    torch.save({"loader": state}, stream)
    stream.seek(0)
    return torch.load(stream, map_location)["loader"]


def with_own_generator(n: int) -> dict[str, Any]:
    return {"shuffle": True, "generator": torch.Generator().manual_seed(n)}


MAKERS = {
    "in order": lambda _: {},
    "shuffled": lambda _: {"shuffle": True},
    "own generator": with_own_generator,
    "with replacement": lambda n: {
        "sampler": data.RandomSampler(
            range(30), replacement=True, generator=torch.Generator().manual_seed(n)
        )
    },
    "no workers": lambda n: {**with_own_generator(n), "num_workers": 0},
    "persistent": lambda n: {**with_own_generator(n), "persistent_workers": True},
    "without batching": lambda _: {"shuffle": True, "batch_size": None},
}


@pytest.mark.parametrize("n_taken", [1, 8, 11])
@pytest.mark.parametrize("kind", MAKERS)
def test_it_goes_on_where_it_was_in_another_loader(
    pair: Pair, image_folder: Path, kind: str, n_taken: int
) -> None:
    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        options = {"batch_size": 4, "num_workers": 2, "seed": 3, **MAKERS[kind](seed)}
        return pair.ours(D.Images(image_folder, 30, draws=True), **options)

    one = make(1)
    iterator, n = iter(one), n_taken
    for _ in range(n_taken):
        if next(iterator, None) is None:
            iterator, n = iter(one), n - 1
    state = saved(one.state_dict())
    rest = list(iterator)
    other = make(2)
    torch.rand(5)
    global_state = torch.get_rng_state()
    other.load_state_dict(state)
    resumed = list(other)

    assert_same(resumed, rest)
    assert torch.equal(torch.get_rng_state(), global_state) or kind == "no workers"
    if "own" in kind or kind in ("persistent", "no workers"):
        assert_same(list(one), list(other))


@pytest.mark.gpu("torch")
@pytest.mark.leaks_ok("CUDA keeps descriptors")
@pytest.mark.parametrize("kind", ["shuffled", "own generator"])
def test_a_state_that_was_loaded_onto_a_gpu_is_taken(pair: Pair, kind: str) -> None:
    one, other = (
        pair.ours(range(30), batch_size=4, num_workers=2, **MAKERS[kind](n)) for n in (1, 2)
    )
    iterator = iter(one)
    next(iterator)
    other.load_state_dict(saved(one.state_dict(), "cuda"))
    assert_same(list(other), list(iterator))


def test_saving_changes_nothing_and_may_be_done_after_each_mini_batch(pair: Pair) -> None:
    torch.manual_seed(5)
    undisturbed = list(pair.ours(D.Made("drawn", 20), 3, shuffle=True))
    torch.manual_seed(5)
    loader = pair.ours(D.Made("drawn", 20), 3, shuffle=True)
    states, batches = [], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.state_dict())
    assert_same(batches, undisturbed)
    assert [state["n_taken"] for state in states] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_state_before_the_first_mini_batch_gives_the_same_order(
    plain_pair: Pair, n_workers: int
) -> None:
    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        return plain_pair.ours(D.Made("int"), 4, shuffle=True, num_workers=n_workers)

    one = make(1)
    iterator = iter(one)
    state, batches = saved(one.state_dict()), list(iterator)
    other = make(2)
    other.load_state_dict(state)
    assert_same(list(other), batches)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_state_between_epochs_leaves_the_epoch_of_a_sampler_to_the_program(
    plain_pair: Pair, n_workers: int
) -> None:
    def make() -> Any:
        sampler = data.DistributedSampler(range(24), num_replicas=2, rank=0, seed=4)
        return plain_pair.ours(D.Made("int", 24), 4, sampler=sampler, num_workers=n_workers)

    def epoch(loader: Any, number: int) -> list[Any]:
        loader.sampler.set_epoch(number)
        return list(loader)

    one, other = make(), make()
    epoch(one, 0)
    other.load_state_dict(saved(one.state_dict()))
    expected = epoch(one, 1)
    assert_same(epoch(other, 1), expected)
    assert_same(epoch(other, 2), epoch(one, 2))


class EveryOther(data.BatchSampler):
    """A batch sampler around another one, without its attributes, as accelerate has."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Any:
        return (batch for n, batch in enumerate(self.batch_sampler) if n % 2)

    def __len__(self) -> int:
        return len(self.batch_sampler) // 2


class SeededByEpoch(data.RandomSampler):
    """A sampler that makes its generator when it is first asked, as accelerate has."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        self.generator = (self.generator or torch.Generator()).manual_seed(5 + self.epoch)
        yield from super().__iter__()
        self.epoch += 1


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_state_knows_the_sampler_in_a_batch_sampler_around_another_one(
    plain_pair: Pair, is_wrapped: bool, is_seeded: bool
) -> None:
    def make(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        keys = range(40)
        sampler = (
            SeededByEpoch(keys) if is_seeded else data.RandomSampler(keys, False, None, generator)
        )
        batches = data.BatchSampler(sampler, 4, drop_last=False)
        return plain_pair.ours(
            D.Made("int", 40), batch_sampler=EveryOther(batches) if is_wrapped else batches
        )

    one = make(1)
    list(one)
    iterator = iter(one)
    next(iterator)
    state, rest = saved(one.state_dict()), list(iterator)
    used = make(3)
    list(used)
    for other in (make(2), used):
        other.load_state_dict(state)
        assert_same(list(other), rest)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_state_of_persistent_workers_between_epochs_gives_the_next_order(
    plain_pair: Pair, n_workers: int
) -> None:
    def make(seed: int, **options: Any) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return plain_pair.ours(D.Made("int"), 4, shuffle=True, generator=generator, **options)

    one = make(1, num_workers=2, persistent_workers=True)
    other = make(2, num_workers=n_workers)
    list(one)
    state = saved(one.state_dict())
    expected = list(one)
    other.load_state_dict(state)
    assert_same(list(other), expected)


def test_a_state_of_persistent_workers_amid_an_epoch_goes_on_without_workers(
    plain_pair: Pair,
) -> None:
    def make(seed: int, **options: Any) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return plain_pair.ours(D.Made("int"), 4, shuffle=True, generator=generator, **options)

    one = make(1, num_workers=2, persistent_workers=True)
    list(one)
    iterator = iter(one)
    next(iterator)
    other = make(2, num_workers=0)
    other.load_state_dict(saved(one.state_dict()))
    assert_same(list(other), list(iterator))


def test_a_state_of_other_mini_batches_is_refused_amid_an_epoch(plain_pair: Pair) -> None:
    def make(size: int, n_ranks: int = 1) -> Any:
        sampler = data.DistributedSampler(range(24), num_replicas=n_ranks, rank=0)
        return plain_pair.ours(D.Made("int", 24), size, sampler=sampler, num_workers=1)

    one = make(4)
    state = saved(one.state_dict())
    for other in (make(6), make(4, 2)):
        other.load_state_dict(state)  # none is taken yet
    next(iter(one))
    state = saved(one.state_dict())
    for other, words in ((make(6), "6 in 1"), (make(4, 2), "4 in 2")):
        with pytest.raises(OptionError, match=f"mini-batches of 4 examples in 1 ranks, .* {words}"):
            other.load_state_dict(state)
    make(4).load_state_dict(state)


def test_a_state_of_another_sampler_is_refused_amid_an_epoch(plain_pair: Pair) -> None:
    def make(**options: Any) -> Any:
        return plain_pair.ours(D.Made("int", 24), 4, num_workers=1, **options)

    def distributed() -> Any:
        return {"sampler": data.DistributedSampler(range(24), num_replicas=1, rank=0)}

    for mine, others in ((distributed(), {"shuffle": True}), ({"shuffle": True}, {})):
        one, other = make(**mine), make(**others)
        other.load_state_dict(saved(one.state_dict()))  # no epoch has begun
        next(iter(one))
        other = make(**others)
        with pytest.raises(OptionError, match=r"another kind of sampler, .*Sampler, here it is"):
            other.load_state_dict(saved(one.state_dict()))
        assert len(list(other)) == 6
    other.load_state_dict(saved(make(**distributed()).state_dict()))
    one = make(**distributed())
    next(iter(one))
    make(**distributed()).load_state_dict(saved(one.state_dict()))


def of_ranks(size: int, n: int, make: Any, states: Any = None, n_batches: int = 99) -> Any:
    """Return what all ranks read together, step by step, and their states."""
    steps: list[set[int]] = []
    found = []
    for rank in range(size):
        order = ScatteredOrder(rank, size, 9, local_ranks=range(size))
        loader = make(D.Made("int", n), 12 // size, sampler=order, num_workers=1)
        if states is not None:
            loader.load_state_dict(states[0])
        for step, batch in zip(range(n_batches), loader, strict=False):
            steps[step:] = steps[step:] or [set()]
            steps[step] |= set(batch.tolist())
        found.append(saved(loader.state_dict()))
    return steps, found


def test_a_scattered_order_is_resumed_on_another_number_of_ranks(plain_pair: Pair) -> None:
    whole, _ = of_ranks(1, 48, plain_pair.ours)
    first, states = of_ranks(3, 48, plain_pair.ours, n_batches=2)
    for size in (1, 2):
        rest, _ = of_ranks(size, 48, plain_pair.ours, states)
        assert [*first, *rest] == whole


def test_a_scattered_order_goes_on_with_the_next_epoch(pair: Pair) -> None:
    order = scatter_order(Communicator(), seed=4)
    loader = pair.ours(D.Made("int", 10), 5, sampler=order)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    assert epochs == [order.of_epoch(epoch, 10).tolist() for epoch in range(2)]


@pytest.mark.parametrize("n_workers", [0, 1])
@pytest.mark.parametrize("n", [4, 40])  # the epoch may be foreseen to its end
def test_after_a_scattered_epoch_that_was_left_early_comes_the_next(
    pair: Pair, n: int, n_workers: int
) -> None:
    order = ScatteredOrder(0, 1, 4)
    loader = pair.ours(D.Made("int", n), 2, sampler=order, num_workers=n_workers)
    next(iter(loader))
    assert torch.cat(list(loader)).tolist() == order.of_epoch(1, n).tolist()


def test_a_scattered_epoch_that_could_not_begin_comes_again() -> None:
    order = ScatteredOrder(0, 1, 4)
    dataset = D.Made("int", 10)
    loader = DataLoader(dataset, 5, sampler=order, num_workers=1)
    dataset.lock = threading.Lock()
    with pytest.raises(DatasetPicklingError):
        iter(loader)
    del dataset.lock
    assert torch.cat(list(loader)).tolist() == order.of_epoch(0, 10).tolist()


def test_the_length_of_a_resumed_scattered_epoch_is_that_of_a_whole_one() -> None:
    def make() -> Any:
        return DataLoader(D.Made("int", 10), 2, sampler=ScatteredOrder(0, 1, 4))

    before, loader = make(), make()
    next(iter(before))
    loader.load_state_dict(before.state_dict())
    assert [len(loader) for _ in loader] == 4 * [5]
    assert [len(loader) for _ in loader] == 5 * [5]


class Divided(EveryOther):
    """One of two parts of another batch sampler, as accelerate has it."""

    num_processes = 2


def test_a_scattered_order_is_divided_no_second_time() -> None:
    def make(size: int) -> Any:
        return DataLoader(D.Made("int"), sampler=ScatteredOrder(0, size, 1))

    # Lightning looks for this class, and divides whatever is of another.
    for size in (1, 2):
        assert isinstance(make(size).sampler, data.DistributedSampler) == (size > 1)
    with pytest.raises(OptionError, match="accelerate would divide each rank's part again"):
        DataLoader(D.Made("int"), batch_sampler=Divided(make(2).batch_sampler))
    whole = DataLoader(D.Made("int"), batch_sampler=Divided(make(1).batch_sampler))
    assert len(list(whole)) == 5


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (D.Made("int", 9), {}, "of a dataset of 10 examples, this one has 9"),
        (D.Made("int", 10), {"sampler": ScatteredOrder(0, 1, 1)}, "another kind of sampler"),
        (D.Made("int", 10), with_own_generator(1), "of 0 generators"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(dataset: Any, options: Any, words: str) -> None:
    state = DataLoader(D.Made("int", 10)).state_dict()
    with pytest.raises(OptionError, match=words):
        DataLoader(dataset, **options).load_state_dict(state)
    for nothing in ({}, None):
        with pytest.raises(OptionError, match="is none of overlapiter"):
            DataLoader(dataset).load_state_dict(nothing)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": ScatteredOrder(0, 1, 1)}])
def test_a_state_that_is_not_whole_is_refused(options: dict[str, Any]) -> None:
    loader = DataLoader(D.Made("int", 10), 2, **options)
    next(iter(loader))
    state = loader.state_dict()
    for key in state.keys() - {"version"}:
        part = {name: value for name, value in state.items() if name != key}
        with pytest.raises(OptionError, match=f"lacks {key}; give all that"):
            loader.load_state_dict(part)
    loader.load_state_dict(state)
    assert len(list(loader)) == 4


def distributed(**options: Any) -> Any:
    return data.DistributedSampler(range(10), 2, 0, **options)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            distributed(seed=1),
            distributed(seed=2),
            "DistributedSampler with seed=1, .*, here it has seed=2,",
        ),
        (distributed(), distributed(shuffle=False), "shuffle=True, .* has .*shuffle=False"),
        (
            distributed(),
            distributed(drop_last=True),
            "drop_last=False, here it has .*drop_last=True",
        ),
        (ScatteredOrder(0, 1, 1), ScatteredOrder(0, 1, 2), "taken with seed=1; give scatter_order"),
        (
            data.RandomSampler(range(10)),
            data.RandomSampler(range(10), replacement=True),
            "replacement=False, length=10, here it has replacement=True, length=10",
        ),
        (
            data.SubsetRandomSampler(range(9)),
            data.SubsetRandomSampler(range(8)),
            "length=9, here it has .*length=8; give the same",
        ),
    ],
)
def test_a_state_of_a_sampler_with_other_arguments_is_refused(
    old: Any, new: Any, words: str
) -> None:
    loader, other = (DataLoader(D.Made("int", 10), 2, sampler=each) for each in (old, new))
    next(iter(loader))
    with pytest.raises(OptionError, match=words):
        other.load_state_dict(saved(loader.state_dict()))


class OfNoLength:
    """A batch sampler that does not say how many mini-batches it gives."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_sampler_that_ends_before_the_place_of_a_state_is_an_error(
    plain_pair: Pair, n_workers: int
) -> None:
    def make(n: int) -> Any:
        batches = OfNoLength([[i] for i in range(n)])
        return plain_pair.ours(D.Made("int", 10), batch_sampler=batches, num_workers=n_workers)

    loader, other = make(3), make(1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    other.load_state_dict(saved(loader.state_dict()))
    with pytest.raises(OptionError, match="after mini-batch 2 of an epoch, but the sampler gives"):
        iter(other)


@pytest.mark.parametrize("options", [{}, {"sampler": ScatteredOrder(0, 1, 1)}])
def test_an_epoch_that_cannot_begin_is_resumed_once_it_can(
    plain_pair: Pair, options: dict[str, Any]
) -> None:
    one = plain_pair.ours(D.Made("int", 10), 2, **options)
    iterator = iter(one)
    next(iterator)
    state, rest = saved(one.state_dict()), list(iterator)
    other = plain_pair.ours(D.Made("int", 10), 2, **options)
    other.load_state_dict(state)
    other.worker_init_fn = lambda _: None
    with pytest.raises(DatasetPicklingError):
        iter(other)
    other.worker_init_fn = None
    assert_same(list(other), rest)
    assert len(list(other)) == 5


# --- seed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("collate_fn", [None, D.noisy])
@pytest.mark.parametrize("kind", [D.Made("drawn", 20), D.Together(D.drawn_together)])
def test_with_a_seed_the_random_state_of_an_example_depends_on_nothing_else(
    plain_pair: Pair, kind: Any, collate_fn: Any
) -> None:
    found = []
    for options in ({"num_workers": 1}, {"num_workers": 2}, {"num_workers": 0}):
        torch.manual_seed(len(found))
        loader = plain_pair.ours(kind, 4, seed=8, collate_fn=collate_fn, **options)
        found.append([list(loader), list(loader)])
        assert torch.initial_seed() == len(found) - 1
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
    assert str(found[0][0]) != str(found[0][1])


class Endless:
    """A batch sampler whose iteration lasts the whole run, as timm and YOLO have it."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        while True:
            yield from self.sampler


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_with_a_seed_each_pass_of_an_endless_sampler_is_an_epoch(
    plain_pair: Pair, n_workers: int, drop_last: bool
) -> None:
    def make(kind: Any) -> Any:
        sampler = data.DistributedSampler(range(20), num_replicas=2, rank=1, shuffle=False)
        batches = data.BatchSampler(sampler, 4, drop_last)
        options = {"batch_sampler": kind(batches), "seed": 8, "num_workers": n_workers}
        return plain_pair.ours(D.Made("drawn", 20), **options)

    plain, endless, resumed = make(list), make(Endless), make(Endless)
    iterator = iter(endless)
    epochs = [list(plain) for _ in range(3)]
    passes = [[next(iterator) for _ in epoch] for epoch in epochs]
    assert_same(passes, epochs)
    resumed.load_state_dict(saved(endless.state_dict()))
    assert_same(next(iter(resumed)), next(iterator))
