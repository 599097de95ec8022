"""Compares published training speeds with predictions, to decide which predictions to trust.

`list_caveats` returns the reasons not to trust a prediction. tools/prediction contains the sources
of the speeds, and writes published.json.
"""

from __future__ import annotations

import json
import textwrap
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.performance_model.gpu_specifications import GPUS, TF32, GpuSpec
from gluonlab.performance_model.roofline import DENSE, DEPTHWISE, SGD_STATES, Operator, Work

WIDTH = 80
MAX_TRUSTED_ERROR = 0.3
SIMILAR_FACTOR = 2.0  # batches, operations and numbers of GPUs within this factor are similar
EQUIVALENT_ALGORITHMS = {"nccl": "ring", "horovod": "ring"}  # store -> algorithm within a host
# The trusted range of images per GPU, and of multiply-adds per image. The former is the range of
# published trainings, extended by a factor of 2. The latter is half of LeNet's to twice VGG-16's.
BATCHES, MULTIPLY_ADDS = (1, 2048), (1e6, 31e9)
TRAINING = "training"
FILE = Path(__file__).parent / "published.json"


class PublishedSpeed(NamedTuple):
    """A published speed, and the model's prediction.

    ``value``: the published speed in images/s. ``predicted``: the predicted speed. ``ratio``:
    predicted / published. ``fitted``: whether the model's constants were fitted to this speed.
    tools/prediction/figures.py describes the other fields.
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
        """Return the relative error of the prediction."""
        return abs(self.ratio - 1)

    @property
    def table_section(self) -> str:
        """Return the heading under which this speed is listed in the table."""
        gpu = GPUS.get(self.gpu or "")
        arithmetic = gpu.arithmetic(self.dtype) if gpu else self.dtype
        return f"{self.network} {self.task} {arithmetic}: {self.source}"


class ErrorSummary(NamedTuple):
    """Relative errors of a group of published speeds that were not used to fit the model.

    ``figures``: the number of speeds.
    """

    group: str
    figures: int
    mean: float
    median: float
    largest: float


class Validation(NamedTuple):
    """All published speeds with predictions, and the errors by group.

    ``multiply_adds``: network -> multiply-adds per image.
    """

    figures: Tuple[PublishedSpeed, ...]
    errors: Tuple[ErrorSummary, ...]
    multiply_adds: Mapping[str, int]

    def as_dict(self) -> Dict[str, Any]:
        """Return every published speed with its prediction, and each group's errors, for JSON."""
        return {
            "kind": "validation",
            "figures": [figure._asdict() for figure in self.figures],
            "errors": [summary._asdict() for summary in self.errors],
        }


@lru_cache(maxsize=None)
def read_validation() -> Validation:
    """Read published.json, which ``python tools/prediction validate`` writes."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return Validation(
        tuple(PublishedSpeed(**figure) for figure in content["figures"]),
        tuple(ErrorSummary(**summary) for summary in content["errors"]),
        content["multiply_adds"],
    )


class ComparableTraining(NamedTuple):
    """The properties of a training setup that decide which published speeds are similar.

    ``batch_size``: images per GPU and step. ``passes``: the number of microbatches into which these
    images are divided. ``gpus``: the numbers of GPUs, within a host, for which training is
    predicted. ``optimizer_states``: the number of state arrays of the optimizer, each as large as
    the weights.
    """

    batch_size: int
    dtype: str = "float32"
    tf32: bool = False
    store: str = "device"
    gpus: Tuple[int, ...] = (1,)
    passes: int = 1
    optimizer_states: int = SGD_STATES

    @property
    def images_per_pass(self) -> float:
        """Return the number of images in a microbatch on one GPU."""
        return self.batch_size / self.passes


def list_caveats(work: Work, gpu: GpuSpec, training: ComparableTraining) -> Tuple[List[str], List[str]]:
    """Return the reasons not to trust a prediction of ``training``, and further warnings."""
    batch_size = training.batch_size
    reasons = [
        _describe_prediction_error(figure)
        for figure in _similar_speeds(work, gpu, training)
        if figure.error > MAX_TRUSTED_ERROR
    ]
    if work.uncounted:
        reasons.append(f"the operations of {', '.join(work.uncounted)} are not counted, only their memory traffic")
    if not BATCHES[0] <= batch_size <= BATCHES[1]:
        reasons.append(f"{batch_size:,} images per GPU: published trainings have {BATCHES[0]} to {BATCHES[1] // 2}")
    if not MULTIPLY_ADDS[0] <= work.multiply_adds <= MULTIPLY_ADDS[1]:
        reasons.append(f"{work.multiply_adds:,} multiply-adds per image: published models have 2 million to 15 billion")
    dense = sum(operator.multiply_adds for operator in work.operators if operator.kind == DENSE)
    if work.multiply_adds and dense > work.multiply_adds / 2:
        reasons.append("most operations are in dense layers, but published models are convolutional")
    if any(operator.name == DEPTHWISE for operator in work.operators):
        reasons.append("the model has depthwise convolutions, but none of the published models has")
    memory_bytes = estimate_memory_bytes(work, training.images_per_pass, training.dtype, training.optimizer_states)
    if memory_bytes > gpu.memory_bytes:
        reasons.append(
            f"{batch_size:,} images per GPU need about {memory_bytes / 1e9:.0f} GB, but "
            f"{gpu.name} has {gpu.memory_bytes / 1e9:.0f}"
        )
    return reasons, _list_cautions(gpu, training.dtype, training.tf32)


def _list_cautions(gpu: GpuSpec, dtype: str, tf32: bool) -> List[str]:
    """Return warnings for a GPU or data type with few or no published speeds."""
    compared = {figure.gpu for figure in read_validation().figures if figure.task == TRAINING}
    cautions = []
    if gpu.name not in compared and f"{gpu.name}-80GB" not in compared:
        cautions.append(
            f"no published speed of {gpu.name} was compared: its fractions of the peak are assumed to "
            "equal those of a V100"
        )
    elif gpu.arithmetic(dtype) == TF32 and not tf32:
        cautions.append(f"no published speed of {gpu.name} without TF32 was compared; --tf32 is faster")
    if dtype == "float16":
        ratios = [
            f"{figure.ratio:.2f} times as fast on {figure.gpu}"
            for figure in read_validation().figures
            if (figure.task, figure.dtype, figure.gpus) == (TRAINING, dtype, 1)
        ]
        cautions.append(
            "training in float16 was only compared with NVIDIA's own build, for which the "
            f"predictions are {', '.join(ratios)}"
        )
    return cautions


def _similar_speeds(work: Work, gpu: GpuSpec, training: ComparableTraining) -> List[PublishedSpeed]:
    """Return published speeds of training setups with similar operations, batch sizes and GPUs.

    If the publication does not name its GPU, the GPU is treated as similar. A speed of several GPUs
    is similar if ``training.gpus`` contains about the same number of GPUs, and the store sums in
    the same way.
    """

    def is_similar(figure: PublishedSpeed) -> bool:
        """Return whether the training behind a published speed is similar to ``training``."""
        if figure.task != TRAINING or figure.dtype != training.dtype:
            return False
        if figure.gpu is not None and GPUS[figure.gpu].generation != gpu.generation:
            return False
        if figure.gpus > 1 and not (
            EQUIVALENT_ALGORITHMS.get(figure.store, figure.store)
            == EQUIVALENT_ALGORITHMS.get(training.store, training.store)
            and any(count > 1 and _is_similar(count, figure.gpus) for count in training.gpus)
        ):
            return False
        if (figure.microbatches > 1) != (training.passes > 1):
            return False
        operations = read_validation().multiply_adds[figure.network]
        images_per_pass = figure.batch / figure.microbatches
        return _is_similar(training.images_per_pass, images_per_pass) and _is_similar(work.multiply_adds, operations)

    return [figure for figure in read_validation().figures if is_similar(figure)]


def _is_similar(value: float, other: float) -> bool:
    return other / SIMILAR_FACTOR <= value <= other * SIMILAR_FACTOR


def _describe_prediction_error(figure: PublishedSpeed) -> str:
    """Return a reason not to trust a prediction: the error for a similar published speed."""
    gpu_count = f"{figure.gpus} x " if figure.gpus > 1 else ""
    microbatches = f" in {figure.microbatches} microbatches" if figure.microbatches > 1 else ""
    return (
        f"{figure.network} on {gpu_count}{figure.gpu or 'an unnamed GPU'} at "
        f"{figure.batch:g} images{microbatches}, which is similar, is predicted "
        f"{figure.ratio:.2f} times as fast as published"
    )


def estimate_memory_bytes(work: Work, batch_size: float, dtype: str, optimizer_states: int = SGD_STATES) -> float:
    """Estimate how many bytes of memory training takes on one GPU.

    The memory contains the outputs kept for backward, weights, gradients and ``optimizer_states``
    arrays as large as the weights. ``batch_size``: images of a microbatch.
    """
    element_bytes = 2 if dtype == "float16" else 4
    stashed_elements = sum(map(_stashed_elements, work.operators))
    return element_bytes * batch_size * stashed_elements + (2 + optimizer_states) * 4 * work.parameters


def _stashed_elements(operator: Operator) -> int:
    """Return the number of output elements, per image, that are kept for backward.

    ReLU and additions are computed in place, and keep no outputs.
    """
    in_place = operator.name in ("Activation", "relu", "elemwise_add", "_plus")
    return 0 if in_place else operator.outputs


def validation_text() -> str:
    """Return a table of published speeds with their predictions, and the errors by group.

    A star marks the speeds to which the model was fitted.
    """
    figures = read_validation().figures
    columns = f"{'GPUs':<13}{'batch':>6} {'store':<10}{'published':>11}{'predicted':>11}{'ratio':>8}"
    lines = ["Published speeds and predictions, in images/s.", "", columns]
    for heading in dict.fromkeys(figure.table_section for figure in figures):
        lines += ["", *wrap_sentence(heading, "")]
        for figure in figures:
            if figure.table_section == heading:
                gpus = f"{figure.gpus} x {figure.gpu or 'unnamed'}"
                lines.append(
                    f"{gpus:<13}{figure.batch:>6.4g} {figure.store:<10}{figure.value:>11,.1f}"
                    f"{figure.predicted:>11,.1f}{figure.ratio:>8.2f}{' *' if figure.fitted else ''}"
                )
    held_out = [figure.ratio for figure in figures if not figure.fitted]
    fitted = len(figures) - len(held_out)
    summary = (
        f"{len(figures)} figures; {fitted}, marked with a star, were fitted, {len(held_out)} were "
        f"held out. The median of predicted/published is {median(held_out):.2f} for the held-out "
        "figures. Their errors:"
    )
    lines += ["", *wrap_sentence(summary, ""), ""]
    lines.append(f"{'':<52}{'figures':>8}{'mean':>6}{'median':>7}{'most':>6}")
    for group, count, *errors in read_validation().errors:
        mean, middle, largest = (f"{error * 100:.0f} %" for error in errors)
        lines.append(f"{group:<52}{count:>8}{mean:>6}{middle:>7}{largest:>6}")
    return "\n".join(lines)


def wrap_sentence(sentence: str, bullet: str) -> List[str]:
    """Wrap ``sentence`` to lines of at most WIDTH characters. ``bullet`` starts the first line."""
    indent = " " * len(bullet)
    return textwrap.wrap(sentence, WIDTH, initial_indent=bullet, subsequent_indent=indent)
