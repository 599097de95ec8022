"""The networks of the published figures, as their works."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, Tuple

import mxnet as mx
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from gluonlab.errors import ModelError, unknown
from gluonlab.models import get_model
from gluonlab.models.networks import LeNet
from gluonlab.models.shapes import complete
from gluonlab.prediction.counting import of_network
from gluonlab.prediction.work import Work

IMAGENET, CIFAR, MNIST = (3, 224, 224), (3, 32, 32), (1, 28, 28)


def _alexnet(ceil: bool = False) -> nn.HybridSequential:
    """AlexNet as MXNet's example/image-classification has it: one tower, response normalisation.

    ``ceil``: pooling as MXNet counted until 2016, to whose last window some pixels are lacking.
    """
    net = nn.HybridSequential()
    for channels, kernel, stride, padding, pooled, normed in (
        (96, 11, 4, 0, True, True), (256, 5, 1, 2, True, True), (384, 3, 1, 1, False, False),
        (384, 3, 1, 1, False, False), (256, 3, 1, 1, True, False),
    ):  # fmt: skip
        net.add(nn.Conv2D(channels, kernel, stride, padding), nn.Activation("relu"))
        net.add(*[nn.MaxPool2D(3, 2, ceil_mode=ceil)] * pooled)
        if normed:
            net.add(nn.HybridLambda(lambda F, x: F.LRN(x, nsize=5)))
    net.add(nn.Flatten())
    for _ in range(2):
        net.add(nn.Dense(4096, activation="relu"), nn.Dropout(0.5))
    net.add(nn.Dense(1000))
    return net


def _cifar_resnet(blocks: int) -> nn.HybridBlock:
    widths = [16, 16, 32, 64]
    block = vision.BasicBlockV1
    return vision.ResNetV1(block, [blocks] * 3, widths, classes=10, thumbnail=True)


def work_of(model: str, classes: int, image_shape: Tuple[int, int, int]) -> Work:
    """The work of one of gluonlab's networks for images (C, H, W).

    Raises ModelError for an unknown name, and for images that it cannot take.
    """
    net = get_model(model, classes)
    complete(net, model, image_shape, classes)
    return of_network(net, image_shape, model)


NETWORKS: Dict[str, Tuple[Callable[[], Any], Tuple[int, int, int]]] = {
    "AlexNet": (_alexnet, IMAGENET),
    "AlexNet of 2015": (lambda: _alexnet(ceil=True), IMAGENET),
    "VGG-16": (vision.vgg16, IMAGENET),
    "Inception-v3": (vision.inception_v3, (3, 299, 299)),
    "ResNet-18": (vision.resnet18_v1, (3, 320, 320)),
    "ResNet-50": (vision.resnet50_v2, IMAGENET),
    "ResNet-152": (vision.resnet152_v2, IMAGENET),
    "CIFAR ResNet-110": (lambda: _cifar_resnet(18), CIFAR),
    "LeNet": (lambda: LeNet(10), MNIST),
}


@lru_cache(maxsize=None)
def published_work(name: str) -> Work:
    """The work of a network of NETWORKS; each is counted once."""
    if name not in NETWORKS:
        raise ModelError(unknown("published network", name, NETWORKS))
    make, shape = NETWORKS[name]
    with mx.name.NameManager():
        return of_network(make(), shape, name)
