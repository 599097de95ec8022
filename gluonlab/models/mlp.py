"""A multilayer perceptron."""

from __future__ import annotations

from mxnet.gluon import nn


def mlp(classes: int) -> nn.HybridSequential:
    """(n, ...) -> (n, classes), through 128 and 64 hidden units with ReLU."""
    net = nn.HybridSequential(prefix="mlp_")
    with net.name_scope():
        net.add(nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"))
        net.add(nn.Dense(classes))
    return net
