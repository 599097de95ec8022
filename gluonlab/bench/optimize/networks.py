"""Convolutional networks of two tutorials, written with plain `gluon.nn` as these define them.

- `mnist_cnn`: MXNet's tutorial "Handwritten Digit Recognition"
  (docs/python_docs/python/tutorials/packages/gluon/image/mnist.md in apache/mxnet).
- All others: "Dive into Deep Learning" (d2l.ai), MXNet's tabs. `lenet`: chapter "Convolutional
  Neural Networks (LeNet)". `lenet_with_batch_norm`: chapter "Batch Normalization", its concise
  implementation. `nin`: chapter "Network in Network (NiN)". `googlenet`: chapter "Networks with
  Parallel Concatenations (GoogLeNet)".

Blocks are hybrid here, so that MXNet can compile them.
"""

from __future__ import annotations

from typing import Any, Tuple

from mxnet import gluon
from mxnet.gluon import nn

CLASSES = 10


def _sequence(*layers: gluon.HybridBlock) -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def mnist_cnn() -> nn.HybridSequential:
    """Return MXNet's network for 28x28 digits: 20 and 50 channels, tanh, max pooling."""
    return _sequence(
        nn.Conv2D(20, kernel_size=(5, 5), activation="tanh"),
        nn.MaxPool2D(pool_size=(2, 2), strides=(2, 2)),
        nn.Conv2D(50, kernel_size=(5, 5), activation="tanh"),
        nn.MaxPool2D(pool_size=(2, 2), strides=(2, 2)),
        nn.Dense(500, activation="tanh"),
        nn.Dense(CLASSES, activation="tanh"),
    )


def lenet() -> nn.HybridSequential:
    """Return d2l's LeNet for 28x28 images: 6 and 16 channels, sigmoid, average pooling."""
    return _sequence(
        nn.Conv2D(channels=6, kernel_size=5, padding=2, activation="sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(channels=16, kernel_size=5, activation="sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(120, activation="sigmoid"),
        nn.Dense(84, activation="sigmoid"),
        nn.Dense(CLASSES),
    )


def lenet_with_batch_norm() -> nn.HybridSequential:
    """Return d2l's LeNet for 28x28 images with BatchNorm before each activation."""
    return _sequence(
        nn.Conv2D(6, kernel_size=5),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(16, kernel_size=5),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(120),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.Dense(84),
        nn.BatchNorm(),
        nn.Activation("sigmoid"),
        nn.Dense(CLASSES),
    )


def _nin_block(channels: int, kernel: int, strides: int, padding: int) -> nn.HybridSequential:
    return _sequence(
        nn.Conv2D(channels, kernel, strides, padding, activation="relu"),
        nn.Conv2D(channels, kernel_size=1, activation="relu"),
        nn.Conv2D(channels, kernel_size=1, activation="relu"),
    )


def nin() -> nn.HybridSequential:
    """Return d2l's NiN: its last convolutions have a channel for each class."""
    return _sequence(
        _nin_block(96, kernel=11, strides=4, padding=0),
        nn.MaxPool2D(pool_size=3, strides=2),
        _nin_block(256, kernel=5, strides=1, padding=2),
        nn.MaxPool2D(pool_size=3, strides=2),
        _nin_block(384, kernel=3, strides=1, padding=1),
        nn.MaxPool2D(pool_size=3, strides=2),
        nn.Dropout(0.5),
        _nin_block(CLASSES, kernel=3, strides=1, padding=1),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
    )


class Inception(gluon.HybridBlock):  # type: ignore[misc]
    """Four paths, whose channels are concatenated."""

    def __init__(self, c1: int, c2: Tuple[int, int], c3: Tuple[int, int], c4: int) -> None:
        super().__init__()
        with self.name_scope():
            self.p1 = nn.Conv2D(c1, kernel_size=1, activation="relu")
            self.p2 = _sequence(
                nn.Conv2D(c2[0], kernel_size=1, activation="relu"),
                nn.Conv2D(c2[1], kernel_size=3, padding=1, activation="relu"),
            )
            self.p3 = _sequence(
                nn.Conv2D(c3[0], kernel_size=1, activation="relu"),
                nn.Conv2D(c3[1], kernel_size=5, padding=2, activation="relu"),
            )
            self.p4 = _sequence(
                nn.MaxPool2D(pool_size=3, strides=1, padding=1),
                nn.Conv2D(c4, kernel_size=1, activation="relu"),
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Return the outputs of all paths, side by side."""
        return F.concat(self.p1(x), self.p2(x), self.p3(x), self.p4(x), dim=1)


def _halved() -> nn.MaxPool2D:
    return nn.MaxPool2D(pool_size=3, strides=2, padding=1)


def googlenet() -> nn.HybridSequential:
    """Return d2l's GoogLeNet: nine Inception blocks."""
    return _sequence(
        nn.Conv2D(64, kernel_size=7, strides=2, padding=3, activation="relu"),
        _halved(),
        nn.Conv2D(64, kernel_size=1, activation="relu"),
        nn.Conv2D(192, kernel_size=3, padding=1, activation="relu"),
        _halved(),
        Inception(64, (96, 128), (16, 32), 32),
        Inception(128, (128, 192), (32, 96), 64),
        _halved(),
        Inception(192, (96, 208), (16, 48), 64),
        Inception(160, (112, 224), (24, 64), 64),
        Inception(128, (128, 256), (24, 64), 64),
        Inception(112, (144, 288), (32, 64), 64),
        Inception(256, (160, 320), (32, 128), 128),
        _halved(),
        Inception(256, (160, 320), (32, 128), 128),
        Inception(384, (192, 384), (48, 128), 128),
        nn.GlobalAvgPool2D(),
        nn.Dense(CLASSES),
    )
