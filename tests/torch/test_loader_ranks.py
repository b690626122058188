"""Loaders of several processes, as torchrun starts them: what they share, and give each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.chainer.scripts import run_script  # noqa: E402
from tests.support.staged import staged_paths  # noqa: E402

RANKS = """
    from pathlib import Path
    import torch, torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler
    import overlapiter
    from overlapiter.torch import Communicator, DataLoader
    from tests.torch.torch_datasets import Images

    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        dataset = Images(Path({folder!r}), 64)
        options = {{"source": {folder!r}, "n_prefetchers": 1, "keep_free": 0}}
        staging = overlapiter.Staging({directory!r}, **options)
        sampler = DistributedSampler(dataset, seed=3)
        loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1, staging=staging)
        original = torch.utils.data.DataLoader(dataset, 4, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for ours, theirs in zip(loader, original, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        order = overlapiter.scatter_order(Communicator(), seed=7)
        scattered = DataLoader(dataset, 4, sampler=order, num_workers=1, staging=staging)
        own = [index for batch in scattered for index in batch[1].tolist()]
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, (own, loader.stats().files_staged))
        if rank == 0:
            assert sorted(sum((own for own, _ in found), [])) == list(range(64))
            print("staged", sum(count for _, count in found))
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
"""


def test_under_torchrun_the_processes_of_a_node_stage_each_file_once(
    tmp_path: Path, image_folder: Path
) -> None:
    body = RANKS.format(folder=str(image_folder), directory=str(tmp_path / "fast"))
    body = body.replace("Images('", "Images(__import__('pathlib').Path('").replace(
        "', 64)", "'), 64)"
    )
    runner = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ended = run_script(tmp_path, body, runner=runner)
    assert ended.returncode == 0, ended.stderr
    assert "staged 64" in ended.stdout
    assert len(staged_paths(tmp_path / "fast")) == 64


NODES = """
    import json, os
    from pathlib import Path
    rank = os.environ["RANK"]
    os.environ |= {{"OVERLAPITER_NODE": rank, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}}

    import torch, torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler
    import overlapiter
    from overlapiter.torch import Communicator, DataLoader
    from tests.torch.torch_datasets import Images

    def reads_of(name, sampler, peers):
        staging = overlapiter.Staging(
            f"fast-{{name}}-{{rank}}", source={folder!r}, capacity={capacity}, look_ahead=4,
            n_prefetchers=1, keep_free=0, peers=peers,
        )
        loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1, staging=staging)
        reads = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            expected = list(loader.sampler)
            loader.sampler.set_epoch(epoch)
            found = []
            for batch in loader:
                found += batch[1].tolist()
                dist.barrier()  # as the exchange of the gradients
            assert found == expected
            stats = loader.stats()
            reads.append(stats.files_staged + stats.opens_source)
        loader.close()
        return reads, stats.files_peer

    def main():
        dist.init_process_group("gloo")
        everybody = Communicator()
        store = dist.FileStore("store", 2)
        own = [
            reads_of("pytorch", DistributedSampler(dataset, seed=3), store),
            reads_of("ours", overlapiter.scatter_order(everybody, seed=7), everybody),
        ]
        found = everybody.allgather(own)
        if everybody.rank == 0:
            print(json.dumps(found))
        dist.destroy_process_group()

    dataset = Images(Path({folder!r}), {n_files})
    if __name__ == "__main__":
        main()
"""


def test_nodes_give_each_other_what_they_have_staged_with_a_sampler_of_either_kind(
    tmp_path: Path,
) -> None:
    n_files, folder = 200, tmp_path / "source"
    folder.mkdir()
    for number in range(n_files):
        path = folder / f"{number:05}.jpg"
        path.write_bytes(number.to_bytes(2, "little") * 500)
        os.utime(path, (1e9, 1e9))  # a file that has just changed is not trusted
    capacity = 6 * n_files // 10 * 4096
    body = NODES.format(folder=str(folder), n_files=n_files, capacity=capacity)
    runner = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ended = run_script(tmp_path, body, runner=runner)
    assert ended.returncode == 0, ended.stderr
    for nodes in zip(*json.loads(ended.stdout), strict=True):
        first, _, last = map(sum, zip(*(reads for reads, _ in nodes), strict=True))
        assert n_files <= first <= 1.03 * n_files
        assert last - first <= 0.06 * n_files  # on busy cores a few peers do not answer in time
        assert all(from_peer > n_files / 4 for _, from_peer in nodes)
