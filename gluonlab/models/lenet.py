"""LeNet as the labs write it: 20 and 50 channels, 128 hidden units."""

from __future__ import annotations

from typing import List

from mxnet.gluon import HybridBlock, nn

CHANNELS = (20, 50)


class LeNet(nn.HybridSequential):
    """(n, 1, 28, 28) -> (n, classes).

    ``pool`` is "max" (the Gluon lab) or "avg" (the from-scratch lab).
    """

    def __init__(self, classes: int, pool: str = "max") -> None:
        super().__init__(prefix="lenet_")
        first, second = CHANNELS
        with self.name_scope():
            self.add(*_block(nn.Conv2D(first, 3), pool))  # (n, 20, 13, 13)
            self.add(*_block(nn.Conv2D(second, 5), pool))  # (n, 50, 4, 4)
            # (n, 800). Files number the layers, and earlier versions had one more before these.
            dense = (nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(classes))
            for number, layer in enumerate(dense, start=7):
                self.register_child(layer, str(number))


def _block(convolution: HybridBlock, pool: str) -> List[HybridBlock]:
    pooling = nn.AvgPool2D(2, 2) if pool == "avg" else nn.MaxPool2D(2, 2)
    return [convolution, nn.Activation("relu"), pooling]
