"""Loaders of several processes, as torchrun starts them: what they share, and give each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.chainer.scripts import run_script  # noqa: E402

N_FILES = 200
PROGRAM = """
    import json, math, os
    from pathlib import Path
    import torch, torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler
    import overlapiter
    from bench.slow import SlowStore
    from bench.slow.store import attach
    from overlapiter.torch import Communicator, DataLoader
    from tests.torch.torch_datasets import Failing, Images

    def epochs_of(directory, sampler, **options):
        staging = overlapiter.Staging(
            directory, source="source", look_ahead=4, n_prefetchers=1, keep_free=0, **options
        )
        loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1, staging=staging)
        read, opens = [], []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            original = torch.utils.data.DataLoader(dataset, 4, sampler=list(loader.sampler))
            loader.sampler.set_epoch(epoch)
            for ours, theirs in zip(loader, original, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
                read += ours[1].tolist()
                dist.barrier()  # as the exchange of the gradients
            stats = loader.stats()
            opens.append(stats.files_staged + stats.opens_source)
        loader.close()
        counts = {"staged": stats.files_staged, "from peers": stats.files_peer}
        return {"read": read, "opens": opens, **counts}

    def outcomes_of(batches):
        bad, skip = Failing(ValueError("bad"), (2, 3)), overlapiter.Skip(2)
        loader = DataLoader(bad, batch_sampler=batches, num_workers=1, bad_examples=skip)
        found = []
        dist.init_process_group("gloo")  # as Lightning does it, which is given the loader before
        iterator = iter(loader)
        for _ in batches:
            try:
                found.append(next(iterator).tolist())
            except overlapiter.errors.EmptyBatchError:
                found.append([])
        loader.close()
        return found

    def main():
        rank = os.environ["RANK"]
        own = {"outcomes": outcomes_of([[[0], [4], [5]], [[0, 1], [2, 3], [4, 5]]][int(rank)])}
        everybody = Communicator()
        own["shared"] = epochs_of("shared", DistributedSampler(dataset, seed=3))

        os.environ |= {"OVERLAPITER_NODE": rank, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        room = {"capacity": 6 * len(dataset) // 10 * 4096}
        store = dist.FileStore("store", 2)
        sampler = DistributedSampler(dataset, seed=3)
        own["PyTorch's"] = epochs_of("node-" + rank, sampler, peers=store, **room)
        order = overlapiter.scatter_order(everybody, seed=7)
        own["ours"] = epochs_of("other-" + rank, order, peers=everybody, **room)
        found = everybody.allgather(own)
        if everybody.rank == 0:
            print(json.dumps(found))
        dist.destroy_process_group()

    store = SlowStore("source", 0.005, math.inf)  # farther than the other rank
    dataset = attach(Images(Path("source"), 200), store)
    if __name__ == "__main__":
        main()
"""
CHANGING = """
    import contextlib, json, math, os, threading
    from pathlib import Path
    import overlapiter
    from bench.slow import SlowStore
    from bench.slow.store import attach
    from overlapiter.peers import meeting
    from overlapiter.torch import DataLoader
    from tests.torch.torch_datasets import Images

    def train(loader):
        order = loader.sampler.whole().tolist()
        assert [index for batch in loader for index in batch[1].tolist()] == order
        return loader.stats().files_peer

    def refusal(loader):
        try:
            iter(loader)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def main():
        rank = int(os.environ["RANK"])
        os.environ |= {"OVERLAPITER_NODE": f"{rank}", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        meeting.PATIENCE_SECONDS = 20.0
        comm = overlapiter.Rendezvous("meeting", rank, 2)
        options = {"capacity": 6 * len(dataset) // 10 * 4096, "keep_free": 0, "n_prefetchers": 1}
        staging = overlapiter.Staging(
            f"fast-{rank}", source="source", look_ahead=4, peers=comm, **options
        )
        order = overlapiter.scatter_order(comm, 7)
        loader = DataLoader(dataset, 4, sampler=order, num_workers=1, staging=staging)

        dataset.lock = None if rank else threading.Lock()
        told = comm.allgather(refusal(loader))
        dataset.lock = None
        for change in ("none", "the dataset", "an iterator is held", "closed", "traced"):
            if rank == 0 and change == "the dataset":
                dataset.seen = 1
            if rank == 0 and change == "an iterator is held":
                held = iter(loader)
                next(held)
            if rank == 0 and change == "closed":
                held = None
                loader.close()
            is_traced = rank == 0 and change == "traced"
            with overlapiter.trace("out.json") if is_traced else contextlib.nullcontext():
                known = comm.allgather(train(loader))[1]
                while comm.allgather(train(loader))[1] == known:  # rank 0 gives it nothing yet
                    pass
        loader.close()
        if rank == 0:
            print(json.dumps(told))

    store = SlowStore("source", 0.005, math.inf)  # farther than the other rank
    dataset = attach(Images(Path("source"), 200), store)
    if __name__ == "__main__":
        main()
"""


def run_ranks(folder: Path, program: str) -> list[Any]:
    """Run a program as two ranks, and return what it prints in the end."""
    (folder / "source").mkdir()
    for number in range(N_FILES):
        path = folder / "source" / f"{number:05}.jpg"
        path.write_bytes(number.to_bytes(2, "little") * 500)
        os.utime(path, (1e9, 1e9))  # a file that has just changed is not trusted
    runner = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ended = run_script(folder, program, runner=runner)
    assert ended.returncode == 0, ended.stderr
    found: list[Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run two ranks, first on one node, then on two, and return what each reports."""
    return run_ranks(tmp_path_factory.mktemp("ranks"), PROGRAM)


def test_ranks_that_divide_the_data_by_themselves_stay_in_step(ranks: list[dict[str, Any]]) -> None:
    assert [rank["outcomes"] for rank in ranks] == [[[0], [4], [5]], [[0, 1], [], [4, 5]]]


def test_the_ranks_of_a_node_stage_each_file_once(ranks: list[dict[str, Any]]) -> None:
    assert sum(rank["shared"]["staged"] for rank in ranks) == N_FILES


@pytest.mark.parametrize("sampler", ["PyTorch's", "ours"])
def test_nodes_give_each_other_what_they_have_staged(
    ranks: list[dict[str, Any]], sampler: str
) -> None:
    assert sorted(index for rank in ranks for index in rank[sampler]["read"]) == sorted(
        3 * list(range(N_FILES))
    )
    first, _, last = map(sum, zip(*(rank[sampler]["opens"] for rank in ranks), strict=True))
    # On busy cores some peers do not answer in time. Alone the nodes would read 160 files again.
    assert N_FILES <= first <= 1.2 * N_FILES
    assert last - first <= 80
    assert all(rank[sampler]["from peers"] > N_FILES / 4 for rank in ranks)


def test_only_the_first_epoch_needs_the_other_ranks_whatever_one_of_them_changes(
    tmp_path: Path,
) -> None:
    failed, told = run_ranks(tmp_path, CHANGING)
    assert failed.startswith("DatasetPicklingError: ")
    assert told == f"OptionError: peers: rank 0 cannot take part: {failed}"


SPAWNED = """
import torch
from overlapiter.torch import DataLoader

class Mine(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

def train(rank):
    print([batch.tolist() for batch in DataLoader(Mine(), 2, num_workers=1)])

if __name__ == "__main__":
    torch.multiprocessing.spawn(train)
"""


def test_a_rank_that_pytorch_spawns_may_read_a_dataset_of_the_script(tmp_path: Path) -> None:
    assert run_script(tmp_path, SPAWNED).stdout == "[[0, 1], [2, 3]]\n"
