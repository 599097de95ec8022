"""Where a prediction is not to be trusted, and why: by what published figures say of the like."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from gluonlab.prediction.gpus import GPUS, TF32, Gpu
from gluonlab.prediction.networks import published_work
from gluonlab.prediction.published import FIGURES, TRAINING, Figure
from gluonlab.prediction.roofline import KEPT_BY_SGD
from gluonlab.prediction.validate import Row, rows
from gluonlab.prediction.work import DENSE, DEPTHWISE, Operator, Work

TOO_FAR = 0.3
BESIDE = 2.0  # batches within this factor are alike, operations and numbers of GPUs, too
SUMS_LIKE = {"nccl": "ring", "horovod": "ring"}  # what they are within a host
# Batches a GPU of published trainings, with a factor of 2 to each side; and networks' multiply-adds
# an image: from half of LeNet's to twice VGG-16's.
BATCHES, MULTIPLY_ADDS = (1, 2048), (1e6, 31e9)
COMPARED = {figure.gpu for figure in FIGURES if figure.task == TRAINING}


class Case(NamedTuple):
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


def doubts(work: Work, gpu: Gpu, case: Case) -> Tuple[List[str], List[str]]:
    """Reasons not to trust a prediction of training, and what else has not been compared."""
    batch_size = case.batch_size
    refused = [_in_words(row) for row in _alike(work, gpu, case) if row.error > TOO_FAR]
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
        ratios = [
            f"{row.ratio:.2f} times as fast on {row.figure.gpu}"
            for row in rows()
            if (row.figure.task, row.figure.dtype, row.figure.gpus) == (TRAINING, dtype, 1)
        ]
        cautions.append(
            "training in float16 was compared with NVIDIA's own build alone, which is predicted "
            f"{', '.join(ratios)}"
        )
    return cautions


def _alike(work: Work, gpu: Gpu, case: Case) -> List[Row]:
    """Training of a network with about as many operations, at about this batch, on such GPUs.

    A GPU that a figure does not name may be such a one. Of several GPUs are alike those figures
    that have about as many of them as a row, and sum by the same store.
    """

    def is_alike(figure: Figure) -> bool:
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
        operations = published_work(figure.network).multiply_adds
        part = figure.batch / figure.microbatches
        return _near(case.part, part) and _near(work.multiply_adds, operations)

    return [row for row in rows() if is_alike(row.figure)]


def _near(one: float, other: float) -> bool:
    return other / BESIDE <= one <= other * BESIDE


def _in_words(row: Row) -> str:
    figure = row.figure
    several = f"{figure.gpus} x " if figure.gpus > 1 else ""
    cut = f" in {figure.microbatches} microbatches" if figure.microbatches > 1 else ""
    return (
        f"{figure.network} on {several}{figure.gpu or 'a GPU that is not named'} at "
        f"{figure.batch:g} images{cut}, which is alike, is predicted {row.ratio:.2f} times as fast "
        "as published"
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
