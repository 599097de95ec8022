"""Predictions of the published figures, beside them: how far off, and on what.

Their sums are taken to begin after backward: how far they overlapped is published of none.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import mean, median
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import click
import mxnet as mx
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from gluonlab.cli.command import command
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.errors import ModelError, unknown
from gluonlab.models.networks import LeNet
from gluonlab.performance_model.allreduce_time import (
    DEVICE,
    LOCAL,
    MXNET_1_9_HOST,
    GradientSizes,
    HostRates,
    max_owned_bytes,
    sum_within_host_s,
)
from gluonlab.performance_model.count_work import count_network_work
from gluonlab.performance_model.gpu_specifications import FLOAT16, GPUS
from gluonlab.performance_model.published_speeds import (
    FILE,
    ErrorSummary,
    PublishedSpeed,
    Validation,
)
from gluonlab.performance_model.roofline import (
    FITTED_CONSTANTS,
    ExecutionSetting,
    ModelConstants,
    Work,
    step_seconds,
)
from gluonlab.plain_text import json_text
from prediction.figures import FIGURES, INFERENCE, PERF, TRAINING, Figure

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
        return count_network_work(make(), shape, name)


REFERENCE = "V100"  # whose times of two batches give the ratio, where a GPU is not named
# Seconds of the host a step and device in the Gluon lab's loop, layer by layer, with NDArrayIter:
# the processor time of the thread that queues, the median of twelve epochs on a core of an EPYC.
LAB_HOST_S = 2.2e-3
# Seconds of the host a parameter and device in Gluon's own sums: `bench host`, 100 us for eight.
KEY_S = 12.5e-6
DIST = "dist_sync"
FITTED_THEN = HostRates(2.293e9, 4.830e9)  # MXNet of 2015 to 2017, on its users' machines


class Models(NamedTuple):
    """Fitted constants: of kernels, and of ``local`` on the hosts of 2015 to 2017."""

    constants: ModelConstants = FITTED_CONSTANTS
    then: HostRates = FITTED_THEN


class Software(NamedTuple):
    """What a figure was measured with, as far as it changes the prediction.

    ``then``: MXNet before 1.0, on machines whose GPUs reached each other through the host, and
    which updated where it summed. ``peers``: whether they reached each other after all.
    ``processes``: one for each GPU, whose host queues its sums beside the GPU's work. ``fuses``:
    ReLU and additions behind BatchNorm, in float16, and has channels last. ``host_s``: seconds a
    step and device that the one thread of the host takes.
    """

    then: bool = False
    peers: bool = True
    processes: bool = False
    fuses: bool = False
    host_s: float = 0.0


SOFTWARE: Dict[str, Software] = {
    "mxnet": Software(),
    "mxnet of 2015": Software(then=True, peers=False),
    "mxnet of 2017": Software(then=True),
    "nvidia": Software(processes=True, fuses=True),
    "the lab's loop": Software(host_s=LAB_HOST_S),
    "tensorflow": Software(),
}


def predicted(figure: Figure, models: Models) -> float:
    """images/s for a figure: all devices' together."""
    step_s = _one_s(figure, models.constants) + _sum_s(figure, models)
    step_s = max(step_s, SOFTWARE[figure.software].host_s * figure.gpus)
    return figure.gpus * figure.batch / step_s


def _one_s(figure: Figure, constants: ModelConstants) -> float:
    """A step of one device: predicted, or as the given speed of one says."""
    software = SOFTWARE[figure.software]
    work, gpu = published_work(figure.network), GPUS[figure.gpu or REFERENCE]
    setting = ExecutionSetting(
        figure.dtype,
        figure.task == TRAINING,
        fused=software.fuses and figure.dtype == FLOAT16,
        channels_last=software.fuses,
        pixel_bytes=0 if software.fuses else 4,
    )

    def seconds(batch: float) -> float:
        return step_seconds(work, batch, gpu, constants, setting).seconds

    part = figure.batch / figure.microbatches
    if figure.given is None:
        return figure.microbatches * seconds(part)
    given_s = figure.given.batch / figure.given.images_per_s
    if (part, figure.microbatches) == (figure.given.batch, 1):
        return given_s
    return given_s * figure.microbatches * seconds(part) / seconds(figure.given.batch)


def _sum_s(figure: Figure, models: Models) -> float:
    software = SOFTWARE[figure.software]
    if figure.gpus == 1 and not (figure.store == LOCAL and software.then):
        return 0.0
    sizes = [4.0 * numbers for numbers in published_work(figure.network).tensors]
    gradients = GradientSizes(
        sizes, 0.0 if software.processes else KEY_S, updates_weights=software.then
    )
    host = models.then if software.then else MXNET_1_9_HOST
    if figure.store == DEVICE and not software.peers:
        return staged_s(figure.gpus, gradients, host)
    if figure.store == DIST:
        # servers and network as in the given speed of one GPU a host; more GPUs add their sum there
        return (figure.gpus + 1) * gradients.total_bytes / host.pass_bytes_per_s
    topology = make_topology(figure.machine or "pcie", None).subset(figure.gpus)
    return sum_within_host_s(figure.store, topology, gradients, host)


def staged_s(gpus: int, gradients: GradientSizes, host: HostRates) -> float:
    """``device`` where GPUs cannot reach each other: every copy goes through the host's memory.

    To the GPU that sums most, and from it, gpus - 1 copies pass its lanes, and one more those of
    another: the halves of a copy run beside each other, but for the first.
    """
    most = max_owned_bytes(gradients.sizes, gpus)
    copies_s = 2 * gpus * most / host.copy_bytes_per_s if gpus > 1 else 0.0
    return copies_s + (gradients.key_s * len(gradients.sizes) * gpus if gpus > 1 else 0.0)


def predict_figures(models: Models) -> Tuple[PublishedSpeed, ...]:
    """All figures with their predictions by these constants."""
    return tuple(_published(figure, predicted(figure, models)) for figure in FIGURES)


def _published(figure: Figure, value: float) -> PublishedSpeed:
    ratio = value / figure.value
    return PublishedSpeed(**figure._asdict(), fitted=figure.fitted, predicted=value, ratio=ratio)


# --- what the figures are about


GROUPS: Dict[str, Callable[[PublishedSpeed], bool]] = {
    "training on GPUs that were fitted (V100, K80)": lambda figure: (
        figure.task == TRAINING and figure.gpu in ("V100", "K80") and figure.source.startswith(PERF)
    ),
    "inference on the V100": lambda figure: figure.task == INFERENCE,
    "training on GPUs that were not (M60, A100)": lambda figure: (
        figure.gpu in ("M60", "A100-80GB") and figure.gpus == 1
    ),
    "NVIDIA's own build on one V100": lambda figure: (
        figure.software == "nvidia" and (figure.gpu, figure.gpus) == ("V100", 1)
    ),
    "scaling from 2 to 8 GPUs": lambda figure: figure.software == "nvidia" and figure.gpus > 1,
    "slow: local, device through the host, the lab's loop": lambda figure: (
        SOFTWARE[figure.software].then or figure.software == "the lab's loop"
    ),
    "another framework (TensorFlow)": lambda figure: figure.software == "tensorflow",
}


def summaries(figures: Sequence[PublishedSpeed]) -> List[ErrorSummary]:
    """One for each group that has figures held out."""
    made = []
    for group, holds in GROUPS.items():
        errors = [figure.error for figure in figures if holds(figure) and not figure.fitted]
        if errors:
            made.append(ErrorSummary(group, len(errors), mean(errors), median(errors), max(errors)))
    return made


def validate(models: Models) -> Validation:
    """What gluonlab/performance_model/published.json should hold."""
    figures = predict_figures(models)
    networks = dict.fromkeys(figure.network for figure in figures)
    operations = {name: published_work(name).multiply_adds for name in networks}
    return Validation(figures, tuple(summaries(figures)), operations)


@command("python tools/prediction validate")
def main() -> None:
    """Predict the published figures again, and write them into gluonlab/performance_model."""
    found = validate(Models())
    content = {**found.as_dict(), "multiply_adds": found.multiply_adds}
    parts = [f'"kind": {json_text(content["kind"])}']
    for name in ("figures", "errors"):
        lines = ",\n".join(f"  {json_text(one)}" for one in content[name])
        parts.append(f'"{name}": [\n{lines}\n]')
    parts.append(f'"multiply_adds": {json_text(content["multiply_adds"])}')
    FILE.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    click.echo(f"{FILE}: see python -m gluonlab.study speedup --predict table")
