"""Networks that gluonlab defines: LeNet, a multilayer perceptron, ResNet-8 and AlexNet.

`MODELS` in `gluonlab.models` lists the networks that --model accepts.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

from mxnet.gluon import HybridBlock, nn
from mxnet.gluon.model_zoo.vision import BasicBlockV1

LENET_CHANNELS = (20, 50)
ALEXNET_TOWERS = 2
ALEXNET_HIDDEN = 4096
# channels, kernel, stride, padding, whether towers are separate, whether pooling follows
ALEXNET_LAYERS: Tuple[Tuple[int, int, int, int, bool, bool], ...] = (
    (96, 11, 4, 2, False, True),
    (256, 5, 1, 2, True, True),
    (384, 3, 1, 1, False, False),
    (384, 3, 1, 1, True, False),
    (256, 3, 1, 1, True, True),
)


class LeNet(nn.HybridSequential):
    """LeNet: images (n, 1, 28, 28) -> scores (n, classes).

    ``pool``: "max" (the Gluon lab) or "avg" (the from-scratch lab).
    """

    def __init__(self, classes: int, pool: str = "max") -> None:
        super().__init__(prefix="lenet_")
        first, second = LENET_CHANNELS
        with self.name_scope():
            self.add(*_convolution_block(nn.Conv2D(first, 3), pool))  # (n, 20, 13, 13)
            self.add(*_convolution_block(nn.Conv2D(second, 5), pool))  # (n, 50, 4, 4)
            # (n, 800). Parameter files contain the numbers of layers. Earlier versions had one more
            # layer before these layers, so their numbers still start at 7.
            dense = (nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(classes))
            for number, layer in enumerate(dense, start=7):
                self.register_child(layer, str(number))


def _convolution_block(convolution: HybridBlock, pool: str) -> List[HybridBlock]:
    pooling = nn.AvgPool2D(2, 2) if pool == "avg" else nn.MaxPool2D(2, 2)
    return [convolution, nn.Activation("relu"), pooling]


def mlp(classes: int) -> nn.HybridSequential:
    """Create a multilayer perceptron with 128 and 64 hidden units, (n, ...) -> (n, classes)."""
    net = nn.HybridSequential(prefix="mlp_")
    with net.name_scope():
        net.add(nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"))
        net.add(nn.Dense(classes))
    return net


def resnet8(classes: int) -> nn.HybridSequential:
    """Create the ResNet for CIFAR-10 with 8 layers, (n, C, H, W) -> (n, classes).

    The network has three basic blocks, with 16, 32 and 64 channels. The second and third blocks
    halve height and width, and have a 1x1 convolution as their shortcut, as in gluoncv.

    This network is the smallest of those with 6n + 2 layers in K. He, X. Zhang, S. Ren, J. Sun,
    Deep Residual Learning for Image Recognition, 2016, section 4.2. C. J. Shallue et al., Measuring
    the Effects of Data Parallelism on Neural Network Training, 2019, use the same network for
    CIFAR-10.
    """
    # output channels, stride, input channels
    stages: Tuple[Tuple[int, int, int], ...] = ((16, 1, 16), (32, 2, 16), (64, 2, 32))
    net = nn.HybridSequential(prefix="resnet8_")
    with net.name_scope():
        # (n, 16, H, W)
        net.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        for channels, stride, channels_in in stages:
            net.add(BasicBlockV1(channels, stride, downsample=stride > 1, in_channels=channels_in))
        # (n, 64, 1, 1), (n, 64), (n, classes)
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net


def alexnet_2towers(
    classes: int,
    layers: Sequence[Tuple[int, int, int, int, bool, bool]] = ALEXNET_LAYERS,
    hidden: int = ALEXNET_HIDDEN,
    dropout: float = 0.5,
) -> nn.HybridSequential:
    """Create AlexNet with two towers of channels, (n, 3, 224, 224) -> (n, classes).

    The second, fourth and fifth convolutions are divided into two groups of channels. In the
    original, each group had its own GPU. The third convolution and the dense layers read the
    channels of both groups. Source: A. Krizhevsky, I. Sutskever, G. Hinton, ImageNet Classification
    with Deep Convolutional Neural Networks, 2012, section 3.5 and figure 2. The network has no
    response normalization, like later versions of AlexNet.

    ``layers``: the convolutions (see ALEXNET_LAYERS). ``hidden``: number of units in each hidden
    dense layer.
    """
    net = nn.HybridSequential(prefix="alexnet_")
    with net.name_scope():
        for channels, kernel, stride, padding, is_separate, has_pooling in layers:
            groups = ALEXNET_TOWERS if is_separate else 1
            net.add(nn.Conv2D(channels, kernel, stride, padding, groups=groups))
            net.add(nn.Activation("relu"), *[nn.MaxPool2D(3, 2)] * has_pooling)
        net.add(nn.Flatten())  # (n, 256 * 6 * 6)
        for _ in range(2):
            net.add(nn.Dense(hidden, activation="relu"), nn.Dropout(dropout))
        net.add(nn.Dense(classes))
    return net
