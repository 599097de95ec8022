"""LeNet as the labs write it: 20 and 50 channels, 128 hidden units."""

from __future__ import annotations

from typing import Any

from mxnet.gluon import nn


class LeNet(nn.HybridSequential):
    """(n, 1, 28, 28) -> (n, classes); ``pool`` is "max" (the Gluon lab) or "avg" (the from-scratch lab)."""

    def __init__(self, classes: int, pool: str = "max") -> None:
        super().__init__(prefix="lenet_")
        with self.name_scope():
            self.add(
                *_block(20, 3, pool),  # (n, 20, 13, 13)
                *_block(50, 5, pool),  # (n, 50, 4, 4)
                nn.Flatten(),  # (n, 800)
                nn.Dense(128, activation="relu"),
                nn.Dense(classes),
            )


def _block(channels: int, kernel_size: int, pool: str) -> Any:
    relu = nn.Activation("relu")
    if pool == "avg":
        return nn.Conv2D(channels, kernel_size), relu, nn.AvgPool2D(2, 2)
    # The largest of four is positive or not whichever comes first: ReLU after max pooling is the same function,
    # with the same gradient, and reads a quarter of the values.
    return nn.Conv2D(channels, kernel_size), nn.MaxPool2D(2, 2), relu
