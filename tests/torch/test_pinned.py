"""On a GPU: mini-batches in page-locked slots, without a copy. Needs PyTorch and pytest alone."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

from overlapiter.torch import DataLoader  # noqa: E402
from overlapiter.torch.pinned import TorchLocker  # noqa: E402

pytestmark = [
    pytest.mark.gpu("torch"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.leaks_ok("CUDA keeps threads and descriptors"),
]

N_EXAMPLES, BATCH_SIZE = 64, 8
SHAPE = (3, 64, 64)


class Filled(data.Dataset):
    """Examples whose elements all are their index."""

    def __len__(self) -> int:
        return N_EXAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(SHAPE, float(index)), index


class Named:
    """A mini-batch of a class of the user's, which PyTorch pins by its own method."""

    def __init__(self, examples: list[Any]) -> None:
        self.images = torch.stack([image for image, _ in examples])
        self.was_pinned = False

    def pin_memory(self) -> Named:
        self.was_pinned = True
        self.images = self.images.pin_memory()
        return self


@pytest.fixture
def loader() -> Iterator[DataLoader[Any]]:
    """A loader that pins its memory."""
    loader = DataLoader(Filled(), BATCH_SIZE, num_workers=2, pin_memory=True)
    yield loader
    loader.close()


def mappings_of_slots() -> list[tuple[int, int]]:
    """Return the address ranges at which this process has slots mapped."""
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file if "overlapiter-slots" in line]
    ranges = [line[0].split("-") for line in lines]
    return [(int(start, 16), int(stop, 16)) for start, stop in ranges]


def locked_bytes() -> int:
    """Return how much memory of this process the kernel has pinned, by its own count."""
    with open("/proc/self/status") as file:
        found = [line.split()[1] for line in file if line.startswith("VmPin")]
    return int(found[0]) * 1024 if found else 0


def test_tensors_are_pinned_and_lie_in_the_slots(loader: DataLoader[Any]) -> None:
    for images, labels in loader:
        for tensor in (images, labels):
            assert tensor.is_pinned()
            address = tensor.data_ptr()
            assert any(start <= address < stop for start, stop in mappings_of_slots())


def test_without_pin_memory_nothing_is_pinned() -> None:
    loader = DataLoader(Filled(), BATCH_SIZE, num_workers=2)
    assert not any(images.is_pinned() for images, _ in loader)
    loader.close()


def test_a_copy_that_does_not_block_is_right_though_its_tensor_is_dropped_at_once(
    loader: DataLoader[Any],
) -> None:
    busy = torch.rand(4096, 4096, device="cuda")
    for _ in range(6):
        sums, expected = [], []
        for images, labels in loader:
            for _ in range(20):  # keeps the device at work, so that the copies queue
                busy = (busy @ busy).clamp(0, 1)
            expected.append(labels.double().sum().item() * torch.Size(SHAPE).numel())
            on_device = images.to("cuda", non_blocking=True)
            del images
            sums.append(on_device.double().sum())
        assert [each.item() for each in sums] == expected


def test_a_copy_in_another_stream_is_right_if_the_current_one_waits_for_it(
    loader: DataLoader[Any],
) -> None:
    side = torch.cuda.Stream()
    for _ in range(4):
        sums, expected = [], []
        for images, labels in loader:
            expected.append(labels.double().sum().item() * torch.Size(SHAPE).numel())
            with torch.cuda.stream(side):
                on_device = images.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            on_device.record_stream(torch.cuda.current_stream())
            del images
            sums.append(on_device.double().sum())
        assert [each.item() for each in sums] == expected


def test_copies_two_deep_in_another_stream_are_right(loader: DataLoader[Any]) -> None:
    side, busy = torch.cuda.Stream(), torch.rand(4096, 4096, device="cuda")
    for _ in range(4):
        queued, expected, sums = [], [], []
        for images, labels in loader:
            expected.append(labels.double().sum().item() * torch.Size(SHAPE).numel())
            with torch.cuda.stream(side):
                for _ in range(10):
                    busy = (busy @ busy).clamp(0, 1)
                queued.append(images.to("cuda", non_blocking=True))
            del images
            if len(queued) == 3:
                torch.cuda.current_stream().wait_stream(side)
                sums += [each.double().sum() for each in queued]
                queued.clear()
        torch.cuda.current_stream().wait_stream(side)
        sums += [each.double().sum() for each in queued]
        assert [each.item() for each in sums] == expected


def test_a_slot_is_locked_once_and_not_for_each_mini_batch(
    loader: DataLoader[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = torch.cuda.cudart()
    locked: list[int] = []
    unlocked: list[int] = []

    class Counting:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> Any:
            locked.append(address)
            return runtime.cudaHostRegister(address, size, flags)

        def cudaHostUnregister(self, address: int) -> Any:
            unlocked.append(address)
            return runtime.cudaHostUnregister(address)

    monkeypatch.setattr(torch.cuda, "cudart", Counting)
    for _ in range(10):
        for images, _ in loader:
            images.to("cuda", non_blocking=True)
    assert 1 <= len(locked) < 40
    assert len(set(locked)) == len(locked)
    loader.close()
    gc.collect()
    assert sorted(unlocked) == sorted(locked)


def test_memory_that_cuda_refuses_to_lock_leaves_no_error_for_the_users_next_call() -> None:
    memory = mmap.mmap(-1, 1 << 16)
    address, locker = torch.frombuffer(memory, dtype=torch.uint8).data_ptr(), TorchLocker()
    locker.lock(address, len(memory))
    with pytest.raises(RuntimeError, match="error"):
        locker.lock(address, len(memory))
    assert (torch.ones(1, device="cuda") + 1).item() == 2
    locker.unlock(address)


def test_many_epochs_and_loaders_leave_no_memory_locked_or_mapped() -> None:
    before, n_descriptors = None, 0
    for round_number in range(8):
        loader = DataLoader(Filled(), BATCH_SIZE, num_workers=2, pin_memory=True)
        for _ in range(3):
            for images, _labels in loader:
                images.to("cuda", non_blocking=True)
        del images, _labels, loader
        gc.collect()
        if round_number == 1:
            before, n_descriptors = locked_bytes(), len(os.listdir("/proc/self/fd"))
    assert mappings_of_slots() == []
    assert before is not None
    assert locked_bytes() <= before
    assert len(os.listdir("/proc/self/fd")) <= n_descriptors + 2


def test_a_mini_batch_that_is_kept_stays_as_it_is(loader: DataLoader[Any]) -> None:
    kept = [batch for _ in range(3) for batch in loader]
    for images, labels in kept:
        assert images.is_pinned()
        assert torch.equal(images[:, 0, 0, 0].long(), labels)
    loader.close()
    assert torch.equal(kept[0][0][:, 0, 0, 0].long(), kept[0][1])


def test_a_collate_fn_and_a_pin_memory_method_of_the_users_work_as_in_pytorch() -> None:
    loader = DataLoader(Filled(), BATCH_SIZE, num_workers=2, pin_memory=True, collate_fn=Named)
    batches = list(loader)
    assert all(batch.was_pinned and batch.images.is_pinned() for batch in batches)
    loader.close()


def test_without_workers_pytorch_pins_by_a_copy() -> None:
    assert all(images.is_pinned() for images, _ in DataLoader(Filled(), 8, pin_memory=True))


def test_mini_batches_reach_the_device_as_pytorchs_own() -> None:
    found = []
    for kind in (data.DataLoader, DataLoader):
        torch.manual_seed(0)
        loader = kind(Filled(), BATCH_SIZE, shuffle=True, num_workers=2, pin_memory=True)
        found.append([images.to("cuda", non_blocking=True).sum().item() for images, _ in loader])
    loader.close()
    assert found[0] == found[1]
