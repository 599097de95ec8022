"""The networks of `gluonlab.bench.peers.work` as PyTorch writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gluonlab.bench.peers.work import CLASSES


def lenet() -> Any:
    """The lab's network: (n, 1, 28, 28) -> (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(),
        nn.Linear(128, CLASSES),
    )  # fmt: skip


class _Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a way past them.

    ``stride``: of the first, and of the way's projection where shapes change.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels_in, channels, 3, stride), nn.BatchNorm2d(channels), nn.ReLU(),
            _conv(channels, channels, 3, 1), nn.BatchNorm2d(channels),
        )  # fmt: skip
        changes = stride > 1 or channels != channels_in
        self.way = (
            nn.Sequential(_conv(channels_in, channels, 1, stride), nn.BatchNorm2d(channels))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.way(x))


def _conv(channels_in: int, channels: int, kernel: int, stride: int) -> Any:
    return nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False)


def resnet18() -> Any:
    """ResNet-18: (n, 3, H, W) -> (n, 10).

    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016, table 1.
    """
    blocks = [
        _Residual(before, channels, stride)
        for before, channels, stride in [
            (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1),
            (256, 512, 2), (512, 512, 1),
        ]
    ]  # fmt: skip
    return nn.Sequential(
        _conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


NETWORKS = {"lenet": lenet, "resnet18": resnet18}
