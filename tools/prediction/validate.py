"""Predictions of the published figures, and their errors by group.

The sums are assumed to start after backward, because none of the sources publishes its overlap.
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
from gluonlab.models.builtin_networks import LeNet
from gluonlab.performance_model.count_work import count_network_work
from gluonlab.performance_model.gpu_specifications import FLOAT16, GPUS
from gluonlab.performance_model.gradient_sum_time import (
    DEVICE,
    LOCAL,
    MXNET_1_9_HOST,
    GradientSizes,
    HostRates,
    max_owned_bytes,
    sum_within_host_s,
)
from gluonlab.performance_model.published_speeds import FILE, ErrorSummary, PublishedSpeed, Validation
from gluonlab.performance_model.roofline import FITTED_CONSTANTS, ExecutionSetting, ModelConstants, Work, step_seconds
from gluonlab.plain_text import json_text
from prediction.figures import FIGURES, INFERENCE, PERF, TRAINING, Figure

IMAGENET, CIFAR, MNIST = (3, 224, 224), (3, 32, 32), (1, 28, 28)


def _make_alexnet(ceil: bool = False) -> nn.HybridSequential:
    """Return AlexNet as in MXNet's example/image-classification: one tower, LRN.

    ``ceil``: pooling as in MXNet until 2016, whose last window may exceed the image.
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
    "AlexNet": (_make_alexnet, IMAGENET), "AlexNet of 2015": (lambda: _make_alexnet(ceil=True), IMAGENET),
    "VGG-16": (vision.vgg16, IMAGENET), "Inception-v3": (vision.inception_v3, (3, 299, 299)),
    "ResNet-18": (vision.resnet18_v1, (3, 320, 320)), "ResNet-50": (vision.resnet50_v2, IMAGENET),
    "ResNet-152": (vision.resnet152_v2, IMAGENET), "CIFAR ResNet-110": (lambda: _cifar_resnet(18), CIFAR),
    "LeNet": (lambda: LeNet(10), MNIST),
}  # fmt: skip


@lru_cache(maxsize=None)
def published_work(name: str) -> Work:
    """Return the work of a network of NETWORKS, counted once."""
    if name not in NETWORKS:
        raise ModelError(unknown("published network", name, NETWORKS))
    make, shape = NETWORKS[name]
    with mx.name.NameManager():
        return count_network_work(make(), shape, name)


REFERENCE = "V100"  # if a GPU is not named, this GPU determines the ratio of two batches' times
# Host seconds per step and device in the Gluon lab's loop, layer by layer, with NDArrayIter: the
# processor time of the queueing thread, the median of twelve epochs on a core of an EPYC.
LAB_HOST_S = 2.2e-3
# Host seconds per parameter and device in Gluon's own sums: `bench host`, 100 us for eight.
KEY_S = 12.5e-6
DIST = "dist_sync"
OLD_HOST_RATES = HostRates(2.293e9, 4.830e9)  # MXNet of 2015 to 2017, on its users' machines


class FittedModel(NamedTuple):
    """Fitted constants: of kernels, and of ``local`` on the hosts of 2015 to 2017."""

    constants: ModelConstants = FITTED_CONSTANTS
    old_host_rates: HostRates = OLD_HOST_RATES


class Software(NamedTuple):
    """The properties of a figure's software that change the prediction.

    Attributes:
        is_old: MXNet before 1.0, which updated weights in the store, on machines of that time.
        has_peer_access: whether GPUs copy to each other directly, not through the host.
        processes: one process per GPU, so that the host queues sums in parallel with the GPU's
            work.
        fuses: fused ReLU and additions after BatchNorm in float16, and channels last.
        host_s: host seconds per step and device, in one thread.
    """

    is_old: bool = False
    has_peer_access: bool = True
    processes: bool = False
    fuses: bool = False
    host_s: float = 0.0


SOFTWARE: Dict[str, Software] = {
    "mxnet": Software(),
    "mxnet of 2015": Software(is_old=True, has_peer_access=False),
    "mxnet of 2017": Software(is_old=True),
    "nvidia": Software(processes=True, fuses=True),
    "the lab's loop": Software(host_s=LAB_HOST_S),
    "tensorflow": Software(),
}


def predict_speed(figure: Figure, models: FittedModel) -> float:
    """Return the predicted images/s of all devices of a figure."""
    step_s = _device_step_s(figure, models.constants) + _sum_s(figure, models)
    step_s = max(step_s, SOFTWARE[figure.software].host_s * figure.gpus)
    return figure.gpus * figure.batch / step_s


def _device_step_s(figure: Figure, constants: ModelConstants) -> float:
    """Return the seconds of a step of one device: predicted, or from its given speed."""
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

    images_per_pass = figure.batch / figure.microbatches
    if figure.given is None:
        return figure.microbatches * seconds(images_per_pass)
    given_s = figure.given.batch / figure.given.images_per_s
    if (images_per_pass, figure.microbatches) == (figure.given.batch, 1):
        return given_s
    return given_s * figure.microbatches * seconds(images_per_pass) / seconds(figure.given.batch)


def _sum_s(figure: Figure, models: FittedModel) -> float:
    software = SOFTWARE[figure.software]
    if figure.gpus == 1 and not (figure.store == LOCAL and software.is_old):
        return 0.0
    sizes = [4.0 * numbers for numbers in published_work(figure.network).tensors]
    gradients = GradientSizes(sizes, 0.0 if software.processes else KEY_S, updates_weights=software.is_old)
    host = models.old_host_rates if software.is_old else MXNET_1_9_HOST
    if figure.store == DEVICE and not software.has_peer_access:
        return staged_s(figure.gpus, gradients, host)
    if figure.store == DIST:
        # servers and network as in the given speed of one GPU a host; more GPUs add their sum there
        return (figure.gpus + 1) * gradients.total_bytes / host.pass_bytes_per_s
    topology = make_topology(figure.machine or "pcie", None).subset(figure.gpus)
    return sum_within_host_s(figure.store, topology, gradients, host)


def staged_s(gpus: int, gradients: GradientSizes, host: HostRates) -> float:
    """Return the seconds of ``device`` if GPUs copy through the host's memory.

    In each direction, gpus - 1 copies pass the lanes of the GPU that sums most, and one copy passes
    those of another GPU. The two halves of a copy overlap, except those of the first copy.
    """
    owned_bytes = max_owned_bytes(gradients.sizes, gpus)
    copies_s = 2 * gpus * owned_bytes / host.copy_bytes_per_s if gpus > 1 else 0.0
    return copies_s + (gradients.key_s * len(gradients.sizes) * gpus if gpus > 1 else 0.0)


def predict_figures(models: FittedModel) -> Tuple[PublishedSpeed, ...]:
    """Return all figures with predictions by this model."""
    return tuple(_with_prediction(figure, predict_speed(figure, models)) for figure in FIGURES)


def _with_prediction(figure: Figure, value: float) -> PublishedSpeed:
    ratio = value / figure.value
    return PublishedSpeed(**figure._asdict(), fitted=figure.is_fitted, predicted=value, ratio=ratio)


# --- groups of figures


GROUPS: Dict[str, Callable[[PublishedSpeed], bool]] = {
    "training on the fitted GPUs (V100, K80)": lambda figure: (
        figure.task == TRAINING and figure.gpu in ("V100", "K80") and figure.source.startswith(PERF)
    ),
    "inference on the V100": lambda figure: figure.task == INFERENCE,
    "training on other GPUs (M60, A100)": lambda figure: figure.gpu in ("M60", "A100-80GB") and figure.gpus == 1,
    "NVIDIA's own build on one V100": lambda figure: (
        figure.software == "nvidia" and (figure.gpu, figure.gpus) == ("V100", 1)
    ),
    "scaling from 2 to 8 GPUs": lambda figure: figure.software == "nvidia" and figure.gpus > 1,
    "slow: local, device through the host, the lab's loop": lambda figure: (
        SOFTWARE[figure.software].is_old or figure.software == "the lab's loop"
    ),
    "another framework (TensorFlow)": lambda figure: figure.software == "tensorflow",
}


def summarize_errors(figures: Sequence[PublishedSpeed]) -> List[ErrorSummary]:
    """Return the errors of each group with held-out figures."""
    error_summaries = []
    for group, belongs in GROUPS.items():
        errors = [figure.error for figure in figures if belongs(figure) and not figure.fitted]
        if errors:
            error_summaries.append(ErrorSummary(group, len(errors), mean(errors), median(errors), max(errors)))
    return error_summaries


def validate(models: FittedModel) -> Validation:
    """Return the content of gluonlab/performance_model/published.json."""
    figures = predict_figures(models)
    networks = dict.fromkeys(figure.network for figure in figures)
    operations = {name: published_work(name).multiply_adds for name in networks}
    return Validation(figures, tuple(summarize_errors(figures)), operations)


@command("python tools/prediction validate")
def main() -> None:
    """Predict the published figures again, and write them into gluonlab/performance_model."""
    validation = validate(FittedModel())
    content = {**validation.as_dict(), "multiply_adds": validation.multiply_adds}
    parts = [f'"kind": {json_text(content["kind"])}']
    for name in ("figures", "errors"):
        lines = ",\n".join(f"  {json_text(entry)}" for entry in content[name])
        parts.append(f'"{name}": [\n{lines}\n]')
    parts.append(f'"multiply_adds": {json_text(content["multiply_adds"])}')
    FILE.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    click.echo(f"{FILE}: see gluonlab study speedup --predict table")
