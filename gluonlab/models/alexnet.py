"""AlexNet as it was trained in 2012: two towers of channels that meet in some layers only."""

from __future__ import annotations

from typing import Sequence, Tuple

from mxnet.gluon import nn

TOWERS = 2
HIDDEN = 4096
# channels, kernel, stride, padding, whether each tower sees its own channels alone, pooled
LAYERS: Tuple[Tuple[int, int, int, int, bool, bool], ...] = (
    (96, 11, 4, 2, False, True),
    (256, 5, 1, 2, True, True),
    (384, 3, 1, 1, False, False),
    (384, 3, 1, 1, True, False),
    (256, 3, 1, 1, True, True),
)


def alexnet_2towers(
    classes: int,
    layers: Sequence[Tuple[int, int, int, int, bool, bool]] = LAYERS,
    hidden: int = HIDDEN,
    dropout: float = 0.5,
) -> nn.HybridSequential:
    """(n, 3, 224, 224) -> (n, classes), by five convolutions and three dense layers.

    The second, fourth and fifth convolution are in two groups, which had a GPU each; the third, and
    the dense layers, take the channels of both. Source: A. Krizhevsky, I. Sutskever, G. Hinton,
    ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 3.5 and figure 2;
    without its response normalisation, as later versions are.
    """
    net = nn.HybridSequential(prefix="alexnet_")
    with net.name_scope():
        for channels, kernel, stride, padding, apart, pooled in layers:
            groups = TOWERS if apart else 1
            net.add(nn.Conv2D(channels, kernel, stride, padding, groups=groups))
            net.add(nn.Activation("relu"), *[nn.MaxPool2D(3, 2)] * pooled)
        net.add(nn.Flatten())  # (n, 256 * 6 * 6)
        for _ in range(2):
            net.add(nn.Dense(hidden, activation="relu"), nn.Dropout(dropout))
        net.add(nn.Dense(classes))
    return net
