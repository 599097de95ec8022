"""Where a prediction is not to be trusted, and why: by what published figures say of the like."""

from __future__ import annotations

from typing import List, Tuple

from gluonlab.prediction.gpus import GPUS, TF32, Gpu
from gluonlab.prediction.networks import published_work
from gluonlab.prediction.published import FIGURES, TRAINING, Figure
from gluonlab.prediction.validate import Row, rows
from gluonlab.prediction.work import DENSE, DEPTHWISE, Operator, Work

TOO_FAR = 0.3
BESIDE = 2.0  # batches within this factor are alike
# Batches a GPU of published trainings, with a factor of 2 to each side; and networks' multiply-adds
# an image: from half of LeNet's to twice VGG-16's.
BATCHES, MULTIPLY_ADDS = (1, 2048), (1e6, 31e9)
COMPARED = {figure.gpu for figure in FIGURES if figure.task == TRAINING}


def doubts(
    work: Work, gpu: Gpu, batch_size: int, dtype: str, tf32: bool = False
) -> Tuple[List[str], List[str]]:
    """Reasons not to trust a prediction of training, and what else has not been compared."""
    refused = [
        _in_words(row) for row in _alike(work, gpu, batch_size, dtype) if row.error > TOO_FAR
    ]
    if work.uncounted:
        refused.append(
            f"the operations of {', '.join(work.uncounted)} are not counted, only what they move"
        )
    if not BATCHES[0] <= batch_size <= BATCHES[1]:
        refused.append(
            f"{batch_size} images a GPU: published trainings have {BATCHES[0]} to {BATCHES[1] // 2}"
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
    need = memory_bytes(work, batch_size, dtype)
    if need > gpu.memory_bytes:
        refused.append(
            f"it takes about {need / 1e9:.0f} GB, and {gpu.name} has {gpu.memory_bytes / 1e9:.0f}"
        )
    return refused, _cautions(gpu, dtype, tf32)


def _cautions(gpu: Gpu, dtype: str, tf32: bool) -> List[str]:
    cautions = []
    if gpu.name not in COMPARED and f"{gpu.name}-80GB" not in COMPARED:
        cautions.append(
            f"no published speed of {gpu.name} was compared: its shares of the peak are taken "
            "to be a V100's"
        )
    elif gpu.arithmetic(dtype) == TF32 and not tf32:
        cautions.append(
            f"no published speed of {gpu.name} without TF32 was compared; --tf32 is faster"
        )
    if dtype == "float16":
        cautions.append(
            "training in float16 was compared with NVIDIA's own build alone: 24 % below it on a "
            "V100, 8 % above it on an A100"
        )
    return cautions


def _alike(work: Work, gpu: Gpu, batch_size: int, dtype: str) -> List[Row]:
    """Training on one such GPU, of a network with about as many operations, at about this batch."""

    def is_alike(figure: Figure) -> bool:
        if figure.gpu is None or figure.task != TRAINING or figure.gpus > 1:
            return False
        near = batch_size / BESIDE <= figure.batch <= batch_size * BESIDE
        same = GPUS[figure.gpu].generation == gpu.generation and figure.dtype == dtype
        if not (near and same):
            return False
        operations = published_work(figure.network).multiply_adds
        return operations / BESIDE <= work.multiply_adds <= operations * BESIDE

    return [row for row in rows() if is_alike(row.figure)]


def _in_words(row: Row) -> str:
    figure = row.figure
    return (
        f"{figure.network} on {figure.gpu} at {figure.batch:g} images, which is alike, is "
        f"predicted {row.ratio:.2f} times as fast as published"
    )


def memory_bytes(work: Work, batch_size: int, dtype: str) -> float:
    """About what training takes: outputs kept for backward, and weights with gradient and state."""
    size = 2 if dtype == "float16" else 4
    kept = sum(_kept(operator) for operator in work.operators)
    return size * batch_size * kept + 3 * 4 * work.parameters


def _kept(operator: Operator) -> int:
    """Numbers an image that backward needs; ReLU and additions are done in place."""
    in_place = operator.name in ("Activation", "relu", "elemwise_add", "_plus")
    return 0 if in_place else operator.outputs
