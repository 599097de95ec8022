"""FIGURES: all published speeds that predictions are compared with, and their sources.

At most a third of them may be used for the fit (`Figure.is_fitted`). The others are held out. MXNet
is not imported.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

TRAINING, INFERENCE = "training", "inference"

PERF = "MXNet 1.9.1, api/faq/perf.md (MXNet 1.2.0.rc1, cuDNN 7.0.5)"
NVIDIA = "NVIDIA, DeepLearningExamples, MxNet/Classification/RN50v1.5 (container 20.12)"
ISSUE = "github.com/apache/mxnet/issues/"
LAB = "the Gluon lab of several GPUs, on ml.p3.8xlarge: epochs of 2.2-2.4 s for MNIST's 60,000"
TUTORIAL = "batchflow's tutorial of several GPUs (TensorFlow): 197 batches of 64 in 89, 61, 176 s"


class DeviceSpeed(NamedTuple):
    """The published speed of one device of the same series, and its images per step."""

    images_per_s: float
    batch: float


class Figure(NamedTuple):
    """A published speed ``value`` in images/s.

    Attributes:
        network: a network of `prediction.validate.NETWORKS`.
        gpu: the GPU, None if the source does not name it.
        batch: images per device and step.
        value: images/s, with the store dist_sync of each host.
        source: where the figure was published.
        task: "training" or "inference".
        dtype: "float32" or "float16".
        gpus: the number of GPUs, with the store dist_sync of each host.
        store: the store that sums gradients.
        machine: the topology that stands for the machine.
        given: the published speed of one device. The time of computing is taken from it if the GPU
            is not named, or if the software is not MXNet 1.9.1. The prediction is then the scaling.
        software: a key of `prediction.validate.SOFTWARE`.
        microbatches: the number of equal parts of the batch.
    """

    network: str
    gpu: Optional[str]
    batch: float
    value: float
    source: str
    task: str = TRAINING
    dtype: str = "float32"
    gpus: int = 1
    store: str = "device"
    machine: Optional[str] = None
    given: Optional[DeviceSpeed] = None
    software: str = "mxnet"
    microbatches: int = 1

    @property
    def is_fitted(self) -> bool:
        """Return whether the constants were fitted with this figure."""
        if self.source == ISSUE + "872":
            return self.store == "local" and self.gpus in FITTED_LOCAL
        batches = FITTED.get((self.network, self.gpu or "", self.task, self.dtype), ())
        return self.source.startswith(PERF) and self.batch in batches

    @property
    def is_summed_on_host(self) -> bool:
        """Return whether a CPU sums the gradients."""
        return self.store == "local"


SINGLE_GPU_NETWORKS = ("AlexNet", "Inception-v3", "ResNet-50")
# batch -> AlexNet (16 times the batch), Inception-v3, ResNet-50
Table = Dict[int, Tuple[Optional[float], ...]]
V100: Table = {
    1: (1629.52, 21.83, 34.54), 4: (2687.89, 72.79, 113.49), 16: (2994.32, 173.15, 251.22),
    32: (2585.61, 214.48, 298.51), 64: (1984.21, 247.43, 343.19), 128: (None, 253.68, 363.69),
}  # fmt: skip
M60: Table = {
    1: (380.96, 14.06, 20.55), 4: (600.17, 31.96, 45.57), 16: (639.37, 46.88, 64.44),
    32: (576.54, 50.05, 68.34),
}  # fmt: skip
K80: Table = {
    1: (300.30, 10.48, 15.61), 4: (461.01, 22.10, 32.26), 16: (490.45, 31.62, 46.69),
    32: (414.72, 33.78, 49.48),
}  # fmt: skip
SCORING = {  # V100, batches 1, 8, 32, 128
    ("AlexNet", "float32"): (660, 3894, 7906, 10178),
    ("VGG-16", "float32"): (205, 420, 708, 703),
    ("ResNet-50", "float32"): (162, 699, 1077, 1233),
    ("ResNet-152", "float32"): (61, 294, 452, 512),
    ("ResNet-50", "float16"): (271, 1282, 2086, 2355),
}
DGX_GPU_COUNTS = (1, 2, 4, 8)
DGX = (  # GPU, machine that stands for it, type, batch a GPU, images/s on 1, 2, 4, 8
    ("V100", "p3.16xlarge", "float32", 96, (384, 763, 1513, 3005)),
    ("V100", "p3.16xlarge", "float16", 192, (1376, 2768, 5357, 10723)),
    ("A100-80GB", "p4d.24xlarge", "float32", 256, (1022, 2032, 4035, 8001)),
    ("A100-80GB", "p4d.24xlarge", "float16", 256, (2180, 4332, 8587, 16925)),
)

# The figures for the fit: (network, GPU, task, type) -> batches. Held out are Inception-v3, VGG-16,
# ResNet-152 and CIFAR's ResNet, the GPUs M60 and A100, batches 4, 8 and 64, training in float16 and
# TF32, and all sums except two.
FITTED: Dict[Tuple[str, str, str, str], Tuple[int, ...]] = {
    ("ResNet-50", "V100", TRAINING, "float32"): (1, 16, 128),
    ("AlexNet", "V100", TRAINING, "float32"): (16, 256, 512),
    ("ResNet-50", "K80", TRAINING, "float32"): (1, 32),
    ("AlexNet", "K80", TRAINING, "float32"): (16, 256),
    ("ResNet-50", "V100", INFERENCE, "float32"): (1, 32),
    ("AlexNet", "V100", INFERENCE, "float32"): (1, 32),
    ("ResNet-50", "V100", INFERENCE, "float16"): (32,),
}
FITTED_LOCAL = (1, 4)  # K80 of issue 872


def _single_gpu_figures() -> Iterator[Figure]:
    for gpu, machine, table in (("V100", "p3.2xlarge", V100), ("M60", "g3.4xlarge", M60), ("K80", "p2.2xlarge", K80)):
        for batch, values in table.items():
            for network, value in zip(SINGLE_GPU_NETWORKS, values):
                network_batch = batch * (16 if network == "AlexNet" else 1)
                if value is not None:
                    yield Figure(network, gpu, network_batch, value, f"{PERF}, {machine}")


def _inference_figures() -> Iterator[Figure]:
    for (network, dtype), values in SCORING.items():
        for batch, value in zip((1, 8, 32, 128), values):
            yield Figure(network, "V100", batch, value, f"{PERF}, p3.2xlarge", INFERENCE, dtype)


def _dgx_figures() -> Iterator[Figure]:
    for gpu, machine, dtype, batch, values in DGX:
        for gpus, value in zip(DGX_GPU_COUNTS, values):
            yield Figure(
                "ResNet-50", gpu, batch, value, NVIDIA, dtype=dtype, gpus=gpus, store="nccl",
                machine=machine, software="nvidia",
                given=None if gpus == 1 else DeviceSpeed(values[0], batch),
            )  # fmt: skip


def _issue_figures() -> Iterator[Figure]:
    one = DeviceSpeed(409, 256)
    for store, values in (("local", (197, 211, 226, 184)), ("device", (409, 485, 540, 596))):
        for gpus, value in enumerate(values, 1):
            alone = store == "device" and gpus == 1
            yield Figure(
                "AlexNet of 2015", "K80", 256 / gpus, value, ISSUE + "872", gpus=gpus, store=store,
                machine="pcie", software="mxnet of 2015", given=None if alone else one,
            )  # fmt: skip
    for store, batch, one_value, *several in (
        ("local", 32, 95, 76, 143), ("device", 32, 97, 188, 380), ("local", 64, 99, 112, 218),
    ):  # fmt: skip
        for gpus, value in zip((2, 4), several):
            yield Figure(
                "ResNet-50", None, batch, value, ISSUE + "4968", gpus=gpus, store=store,
                machine="pcie", software="mxnet of 2017", given=DeviceSpeed(one_value, batch),
            )  # fmt: skip
    for gpus, value in zip((2, 4), (139, 292)):  # on each of two hosts
        yield Figure(
            "ResNet-50", None, 64, value, ISSUE + "4968", gpus=gpus, store="dist_sync",
            machine="pcie", software="mxnet of 2017", given=DeviceSpeed(73, 64),
        )  # fmt: skip
    for gpus, value in zip((2, 4, 6), (206, 393, 592)):
        yield Figure(
            "CIFAR ResNet-110", None, 64, value, ISSUE + "1260", gpus=gpus, store="local",
            machine="pcie", software="mxnet of 2015", given=DeviceSpeed(108, 64),
        )  # fmt: skip


def _lab_figures() -> Iterator[Figure]:
    for gpus, seconds in ((1, 2.24), (2, 2.34)):  # the means of five epochs of 60,000 images
        yield Figure(
            "LeNet", "V100", 64, round(60000 / seconds), LAB, gpus=gpus, store="local",
            machine="p3.8xlarge", software="the lab's loop",
        )  # fmt: skip


def _tutorial_figures() -> Iterator[Figure]:
    """Yield 197 batches of 64 in 89, 61 and, in microbatches of 2, 176 seconds."""
    one = DeviceSpeed(round(197 * 64 / 89, 1), 64)
    for seconds, microbatches in ((61, 1), (176, 32)):
        yield Figure(
            "ResNet-18", None, 32, round(197 * 64 / seconds, 1), TUTORIAL, gpus=2, store="device",
            machine="pcie", software="tensorflow", given=one, microbatches=microbatches,
        )  # fmt: skip


FIGURES: List[Figure] = [
    *_single_gpu_figures(), *_inference_figures(), *_dgx_figures(), *_issue_figures(),
    *_lab_figures(), *_tutorial_figures(),
]  # fmt: skip


def find_single_gpu_figure(gpu: str, network: str, batch: float) -> Figure:
    """Return the published speed of training on one such GPU, in float32 or TF32."""
    return next(
        figure
        for figure in FIGURES
        if (figure.gpu, figure.network, figure.batch) == (gpu, network, batch)
        and (figure.task, figure.dtype, figure.gpus) == (TRAINING, "float32", 1)
    )
