"""Residual networks."""

from __future__ import annotations

from typing import Tuple

from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision import BasicBlockV1


def resnet8(classes: int) -> nn.HybridSequential:
    """(n, C, H, W) -> (n, classes): He et al.'s network for CIFAR-10 with 8 layers.

    It is the smallest of those with 6n + 2 layers, n = 1. Three stages of one basic block with 16,
    32 and 64 channels, each stage at half the size of the one before. Source: K. He, X. Zhang, S.
    Ren, J. Sun, Deep Residual Learning for Image Recognition, 2016, section 4.2; the network of C.
    J. Shallue et al., Measuring the Effects of Data Parallelism on Neural Network Training, 2019,
    for CIFAR-10. Where a stage begins, its shortcut is a 1x1 convolution, as in gluoncv's networks
    for CIFAR-10.
    """
    # channels, stride, channels before
    stages: Tuple[Tuple[int, int, int], ...] = ((16, 1, 16), (32, 2, 16), (64, 2, 32))
    net = nn.HybridSequential(prefix="resnet8_")
    with net.name_scope():
        # (n, 16, H, W)
        net.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        for channels, stride, before in stages:
            net.add(BasicBlockV1(channels, stride, downsample=stride > 1, in_channels=before))
        # (n, 64, 1, 1), (n, 64), (n, classes)
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net
