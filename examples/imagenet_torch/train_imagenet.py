#!/usr/bin/env python3
"""Train a residual network on folders of images, one for each class, on one or more processes.

The shape is that of PyTorch's own ImageNet script. What overlapiter needs is in ``make_loader``
alone: another class for the loader, and the ``staging``. Start several processes with torchrun.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from models import ARCHITECTURES, resnet
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

import overlapiter


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``None`` takes that of the process."""
    parser = argparse.ArgumentParser(
        description="Train a residual network on folders of images, train/CLASS/* and val/CLASS/*.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("data", help="directory with train and val")
    add("--arch", "-a", choices=ARCHITECTURES, default="resnet18", help="network")
    add("--batch-size", "-b", type=int, default=256, help="images in a mini-batch of all processes")
    add("--epochs", type=int, default=90, help="sweeps over the training images")
    add("--lr", type=float, default=0.1, help="step size of momentum SGD")
    add("--workers", "-j", type=int, default=4, help="file readers of each process")
    add("--seed", type=int, default=0, help="seed of the weights, the order and the crops")
    add("--checkpoint", default="checkpoint.pt", help="written by rank 0 after every epoch")
    add("--save-every", type=int, default=0, help="and after so many mini-batches; 0 for never")
    add("--resume", help="checkpoint to go on from, amid an epoch or not")
    add("--staging", metavar="DIR", help="directory on the node's own disk, to copy the files to")
    add("--loader", choices=("overlap", "torch"), default="overlap", help="whose DataLoader")
    return parser.parse_args(argv)


class ImageFolder(Dataset):  # type: ignore[type-arg]  # of pairs
    """The images below a folder, whose first folder is the class; as torchvision's ImageFolder.

    Args:
        root: The folder.
        side: Height and width of the images.
        is_augmented: Whether to crop and flip at random.
    """

    def __init__(self, root: pathlib.Path, side: int, *, is_augmented: bool) -> None:
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]
        self.side = side
        self.is_augmented = is_augmented

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image, of shape (3, side, side) and type uint8, and its class."""
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        short = self.side * 8 // 7
        scale = short / min(image.size)
        image = image.resize([max(short, round(length * scale)) for length in image.size])
        corner = [(length - self.side) // 2 for length in image.size]
        if self.is_augmented:
            corner = [int(torch.randint(n - self.side + 1, ())) for n in image.size]
        x, y = corner
        pixels = np.asarray(image)[y : y + self.side, x : x + self.side]
        if self.is_augmented and torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), label


def make_loader(args: argparse.Namespace, dataset: ImageFolder, *, is_training: bool) -> Any:
    """Return the loader of this process's part of the images."""
    sampler = None
    if dist.is_initialized():
        sampler = DistributedSampler(dataset, shuffle=is_training, seed=args.seed)
    options = {
        "batch_size": args.batch_size // (dist.get_world_size() if dist.is_initialized() else 1),
        "shuffle": is_training and sampler is None,
        "sampler": sampler,
        "num_workers": args.workers,
        "pin_memory": torch.cuda.is_available(),
    }
    if args.loader == "torch":
        return torch.utils.data.DataLoader(dataset, **options)
    staging = None
    if args.staging is not None:
        staging = overlapiter.Staging(args.staging, source=args.data)
    seed = args.seed if is_training else None
    return overlapiter.torch.DataLoader(dataset, **options, staging=staging, seed=seed)


class Training:
    """A network while it is trained.

    Args:
        args: The command line.
        device: Where.
    """

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args = args
        self.device = device
        n_blocks, n_channels, side = ARCHITECTURES[args.arch]
        root = pathlib.Path(args.data)
        train_set = ImageFolder(root / "train", side, is_augmented=True)
        self.train_loader = make_loader(args, train_set, is_training=True)
        val_set = ImageFolder(root / "val", side, is_augmented=False)
        self.val_loader = make_loader(args, val_set, is_training=False)
        self.network = resnet(n_blocks, n_channels, len(train_set.classes)).to(device)
        self.model: nn.Module = self.network
        if dist.is_initialized():
            self.model = nn.parallel.DistributedDataParallel(self.network)
        self.optimizer = torch.optim.SGD(self.network.parameters(), args.lr, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=30)
        self.epoch = 0

    def run(self) -> None:
        """Train and validate for all epochs that are left."""
        while self.epoch < self.args.epochs:
            if isinstance(self.train_loader.sampler, DistributedSampler):
                self.train_loader.sampler.set_epoch(self.epoch)
            loss = self.train_epoch()
            self.schedule.step()
            accuracy = self.validate()
            self.epoch += 1
            self.save()
            if is_first():
                print(f"epoch {self.epoch}: loss {loss:.6f}, accuracy {accuracy:.4f}", flush=True)

    def train_epoch(self) -> float:
        """Return the mean loss over the mini-batches of this process."""
        self.model.train()
        losses = []
        for number, (images, labels) in enumerate(self.train_loader, 1):
            outputs = self.model(self.prepared(images))
            loss = nn.functional.cross_entropy(outputs, labels.to(self.device, non_blocking=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
            if self.args.save_every and number % self.args.save_every == 0:
                self.save()
        return float(torch.stack(losses).mean()) if losses else float("nan")

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return images on the device, of mean 0 and deviation 1, roughly."""
        return (images.to(self.device, non_blocking=True).float() - 118) / 58

    @torch.no_grad()
    def validate(self) -> float:
        """Return the share of the validation images that are classified rightly."""
        self.model.eval()
        counts = torch.zeros(2, device=self.device)
        for images, labels in self.val_loader:
            found = self.model(self.prepared(images)).argmax(1)
            n_right = (found == labels.to(self.device)).sum()
            counts += torch.stack([n_right, torch.tensor(len(labels), device=self.device)])
        if dist.is_initialized():
            dist.all_reduce(counts)
        return float(counts[0] / counts[1])

    def save(self) -> None:
        """Write a checkpoint for all processes: they differ in their parts of an order alone.

        Of files of their own some would be older than others after a kill.
        """
        if not is_first():
            return
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epoch": self.epoch,
            "random": torch.get_rng_state(),  # from which later orders are drawn
        }
        if self.args.loader == "overlap":
            state["loader"] = self.train_loader.state_dict()
        path = self.args.checkpoint
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)

    def load(self, path: str) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.epoch = state["epoch"]
        torch.set_rng_state(state["random"].cpu())
        if "loader" in state:
            self.train_loader.load_state_dict(state["loader"])


def is_first() -> bool:
    """Return whether this process is to print."""
    return not dist.is_initialized() or dist.get_rank() == 0


def main() -> None:
    """Train as the command line says."""
    args = parse_arguments()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # torchrun started this
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    try:
        training = Training(args, device)
        if args.resume:
            training.load(args.resume)
        training.run()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
