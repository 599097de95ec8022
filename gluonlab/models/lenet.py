"""LeNet as the labs write it: 20 and 50 channels, 128 hidden units."""

from __future__ import annotations

from typing import List

from mxnet.gluon import HybridBlock, nn

from gluonlab.models.lanes import LaneConv2D, TrueChannels

CHANNELS = (20, 50)


class LeNet(nn.HybridSequential):
    """(n, 1, 28, 28) -> (n, classes).

    ``pool`` is "max" (the Gluon lab) or "avg" (the from-scratch lab). ``lanes``: see
    `gluonlab.models.lanes`; 1 leaves the channels as they are. The parameters are the same for all.
    """

    def __init__(self, classes: int, pool: str = "max", lanes: int = 1) -> None:
        super().__init__(prefix="lenet_")
        first, second = CHANNELS
        with self.name_scope():
            self.add(*_block(LaneConv2D(first, 3, lanes), pool))  # (n, 20, 13, 13)
            # (n, 50, 4, 4)
            self.add(*_block(LaneConv2D(second, 5, lanes, in_channels=first), pool))
            self.add(TrueChannels(second, lanes), nn.Flatten())  # (n, 800)
            self.add(nn.Dense(128, activation="relu"), nn.Dense(classes))


def _block(convolution: HybridBlock, pool: str) -> List[HybridBlock]:
    relu = nn.Activation("relu")
    if pool == "avg":
        return [convolution, relu, nn.AvgPool2D(2, 2)]
    # The largest of four is positive or not whichever comes first: ReLU after max pooling is the
    # same function, with the same gradient, and reads a quarter of the values.
    return [convolution, nn.MaxPool2D(2, 2), relu]
