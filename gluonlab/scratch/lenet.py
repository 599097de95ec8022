"""LeNet as a function of images and eight parameter arrays."""

from __future__ import annotations

import math
from typing import List, Tuple

import numpy as np
from mxnet import nd

from gluonlab.scratch.recipes import Deviation, he_deviation

Params = List[nd.NDArray]

IMAGE_SHAPE, CLASSES = (1, 28, 28), 10
SHAPES: Tuple[Tuple[int, ...], ...] = (
    (20, 1, 3, 3), (20,),    # a convolution's weight (out, in, height, width) and bias
    (50, 20, 5, 5), (50,),
    (800, 128), (128,),      # a dense layer's weight (in, out) and bias
    (128, CLASSES), (CLASSES,),
)  # fmt: skip


def init_params(spread: Deviation = he_deviation, seed: int = 0) -> Params:
    """Return the initial parameters, with the shapes in `SHAPES`, on the CPU.

    The weights of a layer are drawn from normal(0, ``spread(fan_in)``). Biases are zero.
    """
    random = np.random.RandomState(seed)
    return [
        nd.array(random.normal(0, spread(fan_in(shape)), shape)) if len(shape) > 1 else nd.zeros(shape)
        for shape in SHAPES
    ]


def fan_in(shape: Tuple[int, ...]) -> int:
    """Return the number of inputs of each unit in a layer whose weight has this shape."""
    return math.prod(shape[1:]) if len(shape) == 4 else shape[0]


def lenet(images: nd.NDArray, params: Params) -> nd.NDArray:
    """Return scores of shape (n, 10) for images of shape (n, 1, 28, 28).

    The images and the parameters must be on the same device.
    """
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h = nd.relu(nd.Convolution(images, w1, b1, kernel=(3, 3), num_filter=20))  # (n, 20, 26, 26)
    h = nd.Pooling(h, pool_type="avg", kernel=(2, 2), stride=(2, 2))  # (n, 20, 13, 13)
    h = nd.relu(nd.Convolution(h, w2, b2, kernel=(5, 5), num_filter=50))  # (n, 50, 9, 9)
    # (n, 50, 4, 4), without the ninth row and column
    h = nd.Pooling(h, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h = nd.relu(nd.dot(h.flatten(), w3) + b3)  # (n, 800) @ (800, 128) -> (n, 128)
    return nd.dot(h, w4) + b4  # (n, 128) @ (128, 10) -> (n, 10)


def cross_entropy(scores: nd.NDArray, labels: nd.NDArray) -> nd.NDArray:
    """Return the loss of each image, which is the negative log probability of its label.

    The scores have shape (n, 10), and the labels and losses have shape (n,).
    """
    return -nd.pick(nd.log_softmax(scores), labels)
