"""Published speeds beside their predictions: where a prediction is not to be trusted, and why.

published.json has the figures; tools/prediction has their sources, and predicts them again.
"""

from __future__ import annotations

import json
import textwrap
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.performance_model.gpu_specifications import GPUS, TF32, GpuSpec
from gluonlab.performance_model.roofline import DENSE, DEPTHWISE, KEPT_BY_SGD, Operator, Work

WIDTH = 80
TOO_FAR = 0.3
BESIDE = 2.0  # batches within this factor are alike, operations and numbers of GPUs, too
SUMS_LIKE = {"nccl": "ring", "horovod": "ring"}  # what they are within a host
# Batches a GPU of published trainings, with a factor of 2 to each side; and networks' multiply-adds
# an image: from half of LeNet's to twice VGG-16's.
BATCHES, MULTIPLY_ADDS = (1, 2048), (1e6, 31e9)
TRAINING = "training"
FILE = Path(__file__).parent / "published.json"


class Published(NamedTuple):
    """A published speed in images/s, ``value``, and what the model predicts for it.

    tools/prediction/figures.py says what the other fields are.
    """

    network: str
    gpu: Optional[str]
    batch: float
    value: float
    source: str
    task: str
    dtype: str
    gpus: int
    store: str
    machine: Optional[str]
    given: Optional[Sequence[float]]
    software: str
    microbatches: int
    fitted: bool
    predicted: float
    ratio: float

    @property
    def error(self) -> float:
        """How far off, of the published."""
        return abs(self.ratio - 1)

    @property
    def head(self) -> str:
        """What figures share that stand together in the table."""
        gpu = GPUS.get(self.gpu or "")
        arithmetic = gpu.arithmetic(self.dtype) if gpu else self.dtype
        return f"{self.network} {self.task} {arithmetic}: {self.source}"


class Summary(NamedTuple):
    """The errors of the held-out figures of a group."""

    group: str
    figures: int
    mean: float
    median: float
    largest: float


class Validation(NamedTuple):
    """All published figures with their predictions, the errors by group, and the networks' work."""

    figures: Tuple[Published, ...]
    errors: Tuple[Summary, ...]
    multiply_adds: Mapping[str, int]

    def as_dict(self) -> Dict[str, Any]:
        """For JSON: every figure with its prediction, and the errors of each group."""
        return {
            "kind": "validation",
            "figures": [figure._asdict() for figure in self.figures],
            "errors": [summary._asdict() for summary in self.errors],
        }


@lru_cache(maxsize=None)
def validation() -> Validation:
    """Read published.json, which ``python tools/prediction validate`` writes."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return Validation(
        tuple(Published(**figure) for figure in content["figures"]),
        tuple(Summary(**summary) for summary in content["errors"]),
        content["multiply_adds"],
    )


class ComparableTraining(NamedTuple):
    """A training as far as published ones may be like it.

    ``batch_size``: images a GPU, which go through the network in ``passes``. ``gpus``: of a host,
    the numbers of them. ``kept``: arrays of the optimizer's state.
    """

    batch_size: int
    dtype: str = "float32"
    tf32: bool = False
    store: str = "device"
    gpus: Tuple[int, ...] = (1,)
    passes: int = 1
    kept: int = KEPT_BY_SGD

    @property
    def part(self) -> float:
        """Images of a pass."""
        return self.batch_size / self.passes


def doubts(work: Work, gpu: GpuSpec, case: ComparableTraining) -> Tuple[List[str], List[str]]:
    """Reasons not to trust a prediction of training, and what else has not been compared."""
    batch_size = case.batch_size
    refused = [_in_words(figure) for figure in _alike(work, gpu, case) if figure.error > TOO_FAR]
    if work.uncounted:
        refused.append(
            f"the operations of {', '.join(work.uncounted)} are not counted, only what they move"
        )
    if not BATCHES[0] <= batch_size <= BATCHES[1]:
        refused.append(
            f"{batch_size:,} images a GPU: published trainings have {BATCHES[0]} to "
            f"{BATCHES[1] // 2}"
        )
    if not MULTIPLY_ADDS[0] <= work.multiply_adds <= MULTIPLY_ADDS[1]:
        refused.append(
            f"{work.multiply_adds:,} multiply-adds an image: published networks have 2 million to "
            "15 billion"
        )
    dense = sum(each.multiply_adds for each in work.operators if each.kind == DENSE)
    if work.multiply_adds and dense > work.multiply_adds / 2:
        refused.append("most operations are in dense layers: published networks are convolutional")
    if any(each.name == DEPTHWISE for each in work.operators):
        refused.append("it has depthwise convolutions: no published network compared here has any")
    need = memory_bytes(work, case.part, case.dtype, case.kept)
    if need > gpu.memory_bytes:
        refused.append(
            f"{batch_size:,} images a GPU take about {need / 1e9:.0f} GB, and {gpu.name} has "
            f"{gpu.memory_bytes / 1e9:.0f}"
        )
    return refused, _cautions(gpu, case.dtype, case.tf32)


def _cautions(gpu: GpuSpec, dtype: str, tf32: bool) -> List[str]:
    compared = {figure.gpu for figure in validation().figures if figure.task == TRAINING}
    cautions = []
    if gpu.name not in compared and f"{gpu.name}-80GB" not in compared:
        cautions.append(
            f"no published speed of {gpu.name} was compared: its shares of the peak are taken "
            "to be a V100's"
        )
    elif gpu.arithmetic(dtype) == TF32 and not tf32:
        cautions.append(
            f"no published speed of {gpu.name} without TF32 was compared; --tf32 is faster"
        )
    if dtype == "float16":
        ratios = [
            f"{figure.ratio:.2f} times as fast on {figure.gpu}"
            for figure in validation().figures
            if (figure.task, figure.dtype, figure.gpus) == (TRAINING, dtype, 1)
        ]
        cautions.append(
            "training in float16 was compared with NVIDIA's own build alone, which is predicted "
            f"{', '.join(ratios)}"
        )
    return cautions


def _alike(work: Work, gpu: GpuSpec, case: ComparableTraining) -> List[Published]:
    """Training of a network with about as many operations, at about this batch, on such GPUs.

    A GPU that a figure does not name may be such a one. Of several GPUs are alike those figures
    that have about as many of them as a row, and sum by the same store.
    """

    def is_alike(figure: Published) -> bool:
        if figure.task != TRAINING or figure.dtype != case.dtype:
            return False
        if figure.gpu is not None and GPUS[figure.gpu].generation != gpu.generation:
            return False
        if figure.gpus > 1 and not (
            SUMS_LIKE.get(figure.store, figure.store) == SUMS_LIKE.get(case.store, case.store)
            and any(count > 1 and _near(count, figure.gpus) for count in case.gpus)
        ):
            return False
        if (figure.microbatches > 1) != (case.passes > 1):
            return False
        operations = validation().multiply_adds[figure.network]
        part = figure.batch / figure.microbatches
        return _near(case.part, part) and _near(work.multiply_adds, operations)

    return [figure for figure in validation().figures if is_alike(figure)]


def _near(one: float, other: float) -> bool:
    return other / BESIDE <= one <= other * BESIDE


def _in_words(figure: Published) -> str:
    several = f"{figure.gpus} x " if figure.gpus > 1 else ""
    cut = f" in {figure.microbatches} microbatches" if figure.microbatches > 1 else ""
    return (
        f"{figure.network} on {several}{figure.gpu or 'a GPU that is not named'} at "
        f"{figure.batch:g} images{cut}, which is alike, is predicted {figure.ratio:.2f} times as "
        "fast as published"
    )


def memory_bytes(
    work: Work, batch_size: float, dtype: str, kept_states: int = KEPT_BY_SGD
) -> float:
    """About what training takes: outputs kept for backward, and weights with gradient and state.

    ``batch_size``: images that go through the network at a time.
    """
    size = 2 if dtype == "float16" else 4
    kept = sum(_kept(operator) for operator in work.operators)
    return size * batch_size * kept + (2 + kept_states) * 4 * work.parameters


def _kept(operator: Operator) -> int:
    """Numbers an image that backward needs; ReLU and additions are done in place."""
    in_place = operator.name in ("Activation", "relu", "elemwise_add", "_plus")
    return 0 if in_place else operator.outputs


def validation_text() -> str:
    """Every published figure beside its prediction, and the errors by group.

    Fitted figures have a star.
    """
    figures = validation().figures
    columns = (
        f"{'GPUs':<13}{'batch':>6} {'store':<10}{'published':>11}{'predicted':>11}{'ratio':>8}"
    )
    lines = ["Published speeds and their predictions, images/s.", "", columns]
    for head in dict.fromkeys(figure.head for figure in figures):
        lines += ["", *wrapped(head, "")]
        for figure in figures:
            if figure.head == head:
                gpus = f"{figure.gpus} x {figure.gpu or 'unnamed'}"
                lines.append(
                    f"{gpus:<13}{figure.batch:>6.4g} {figure.store:<10}{figure.value:>11,.1f}"
                    f"{figure.predicted:>11,.1f}{figure.ratio:>8.2f}{' *' if figure.fitted else ''}"
                )
    held_out = [figure.ratio for figure in figures if not figure.fitted]
    fitted = len(figures) - len(held_out)
    said = (
        f"{len(figures)} figures; {fitted}, with a star, were fitted, {len(held_out)} held out, "
        f"of which predicted/published has the median {median(held_out):.2f}. Errors of those:"
    )
    lines += ["", *wrapped(said, ""), ""]
    lines.append(f"{'':<52}{'figures':>8}{'mean':>6}{'median':>7}{'most':>6}")
    for one in validation().errors:
        percents = (f"{error * 100:.0f} %" for error in (one.mean, one.median, one.largest))
        mean, middle, most = percents
        lines.append(f"{one.group:<52}{one.figures:>8}{mean:>6}{middle:>7}{most:>6}")
    return "\n".join(lines)


def wrapped(sentence: str, bullet: str) -> List[str]:
    """Lines of WIDTH columns; ``bullet`` stands in front of the first."""
    after = " " * len(bullet)
    return textwrap.wrap(sentence, WIDTH, initial_indent=bullet, subsequent_indent=after)
