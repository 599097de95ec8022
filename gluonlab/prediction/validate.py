"""Predictions of the published figures, beside them: how far off, on what, and what was fitted.

Their sums are taken to begin after backward: how far they overlapped is published of none.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import mean, median
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.topology import make_topology
from gluonlab.prediction.constants import FITTED, FITTED_THEN, MEASURED_NOW, Constants, Host
from gluonlab.prediction.gpus import FLOAT16, GPUS
from gluonlab.prediction.networks import published_work
from gluonlab.prediction.published import FIGURES, INFERENCE, PERF, TRAINING, Figure
from gluonlab.prediction.roofline import Setting, step_parts
from gluonlab.prediction.sums import DEVICE, LOCAL, Gradients, staged_s, within_host_s

REFERENCE = "V100"  # whose times of two batches give the ratio, where a GPU is not named
# Seconds of the host a step and device in the Gluon lab's loop, layer by layer, with NDArrayIter:
# the processor time of the thread that queues, the median of twelve epochs on a core of an EPYC.
LAB_HOST_S = 2.2e-3
# Seconds of the host a parameter and device in Gluon's own sums: `bench host`, 100 us for eight.
KEY_S = 12.5e-6
DIST = "dist_sync"


class Models(NamedTuple):
    """Fitted constants: of kernels, and of ``local`` on the hosts of 2015 to 2017."""

    constants: Constants = FITTED
    then: Host = FITTED_THEN


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


class Row(NamedTuple):
    """A figure and its prediction."""

    figure: Figure
    predicted: float

    @property
    def ratio(self) -> float:
        """Predicted by published."""
        return self.predicted / self.figure.value

    @property
    def error(self) -> float:
        """How far off, of the published."""
        return abs(self.ratio - 1)


def predicted(figure: Figure, models: Models) -> float:
    """images/s for a figure: all devices' together."""
    step_s = _one_s(figure, models.constants) + _sum_s(figure, models)
    step_s = max(step_s, SOFTWARE[figure.software].host_s * figure.gpus)
    return figure.gpus * figure.batch / step_s


def _one_s(figure: Figure, constants: Constants) -> float:
    """A step of one device: predicted, or as the given speed of one says."""
    software = SOFTWARE[figure.software]
    work, gpu = published_work(figure.network), GPUS[figure.gpu or REFERENCE]
    setting = Setting(
        figure.dtype,
        figure.task == TRAINING,
        fused=software.fuses and figure.dtype == FLOAT16,
        channels_last=software.fuses,
        pixel_bytes=0 if software.fuses else 4,
    )

    def seconds(batch: float) -> float:
        return step_parts(work, batch, gpu, constants, setting).seconds

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
    gradients = Gradients(sizes, 0.0 if software.processes else KEY_S, updated=software.then)
    host = models.then if software.then else MEASURED_NOW
    if figure.store == DEVICE and not software.peers:
        return staged_s(figure.gpus, gradients, host)
    if figure.store == DIST:
        # servers and network as in the given speed of one GPU a host; more GPUs add their sum there
        return (figure.gpus + 1) * gradients.total / host.pass_bytes_per_s
    topology = make_topology(figure.machine or "pcie", None).subset(figure.gpus)
    return within_host_s(figure.store, topology, gradients, host)


@lru_cache(maxsize=2)
def rows(models: Optional[Models] = None) -> Tuple[Row, ...]:
    """All figures, predicted, with the committed constants by default."""
    own = models or Models()
    return tuple(Row(figure, predicted(figure, own)) for figure in FIGURES)


# --- what the figures are about


GROUPS: Dict[str, Callable[[Figure], bool]] = {
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


class Summary(NamedTuple):
    """The errors of the held-out figures of a group."""

    group: str
    figures: int
    mean: float
    median: float
    largest: float


def summaries(found: Sequence[Row]) -> List[Summary]:
    """One for each group that has figures held out."""
    made = []
    for group, holds in GROUPS.items():
        errors = [row.error for row in found if holds(row.figure) and not row.figure.fitted]
        if errors:
            made.append(Summary(group, len(errors), mean(errors), median(errors), max(errors)))
    return made


def as_dict(found: Sequence[Row]) -> Dict[str, Any]:
    """For JSON: every figure with its prediction, and the errors of each group."""
    figures = [
        {**row.figure._asdict(), "fitted": row.figure.fitted, "predicted": row.predicted,
         "ratio": row.ratio}
        for row in found
    ]  # fmt: skip
    errors = [summary._asdict() for summary in summaries(found)]
    return {"kind": "validation", "figures": figures, "errors": errors}
