"""Networks: the residual networks of He et al. (CVPR 2016), and one that trains in seconds."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut (Figure 2 of the paper).

    Args:
        n_in: Channels of its input.
        n_out: Channels of its output.
        stride: Of the first convolution.
    """

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            projection = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(n_out))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the output, of ``1 / stride`` the height and width."""
        return torch.relu(self.main(images) + self.shortcut(images))


def resnet(n_blocks: tuple[int, ...], n_channels: int, n_classes: int) -> nn.Module:
    """Return a residual network; each group of blocks but the first halves height and width.

    Args:
        n_blocks: Blocks in each group.
        n_channels: Channels of the first group; each further one has twice as many.
        n_classes: Classes.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(3, n_channels, 7, 2, 3, bias=False),
        nn.BatchNorm2d(n_channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    n_in = n_channels
    for group, count in enumerate(n_blocks):
        n_out = n_channels << group
        for number in range(count):
            layers.append(Block(n_in, n_out, 2 if group and not number else 1))
            n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, n_classes))


#: By name: blocks in each group, channels of the first one, and the side of the images.
ARCHITECTURES = {
    "tiny": ((1, 1), 8, 32),
    "resnet18": ((2, 2, 2, 2), 64, 224),
    "resnet34": ((3, 4, 6, 3), 64, 224),
}
