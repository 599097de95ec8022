"""What a network does with an image, and how long that takes a GPU: a roofline for each kernel.

A kernel takes as long as its operations, at the share of the GPU's peak that such kernels reach, or
as the bytes that it moves, whichever is longer; then MXNet starts the next. Source of the model:
Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (2009). How a share changes with a GPU's generation: `_reached`. MXNet is not
imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, NamedTuple, Tuple

from gluonlab.performance_model.gpu_specifications import FLOAT16, FLOAT32, GpuSpec

CONVOLUTION, DENSE, MEMORY = "convolution", "dense", "memory"
DEPTHWISE = "depthwise convolution"  # the name of one whose groups have one channel each


@dataclass(frozen=True)
class Operator:
    """One operator of a graph; counts are per image, but for ``weights``.

    ``kind``: CONVOLUTION or DENSE, with ``multiply_adds`` in forward and numbers ``inputs`` and
    ``outputs``; MEMORY is all that only reads and writes: ``forward_moved`` and ``backward_moved``
    numbers. ``weights``: the numbers of its parameters, whatever the batch.
    ``kernel``: the side of a square window of stride 1 over all channels, else 0.
    ``data_gradient``: whether backward computes a gradient of its input. ``after_norm``: whether it
    is a ReLU or an addition behind BatchNorm.
    """

    kind: str
    name: str
    multiply_adds: int = 0
    inputs: int = 0
    outputs: int = 0
    weights: int = 0
    kernel: int = 0
    data_gradient: bool = True
    forward_moved: int = 0
    backward_moved: int = 0
    after_norm: bool = False


@dataclass(frozen=True)
class Work:
    """A network's operators for images of one shape; ``tensors``: the numbers of each parameter.

    Parameters that are not trained, such as running statistics, are no tensors.
    ``uncounted``: operators whose multiply-adds are not counted, only what they move.
    """

    name: str
    image_shape: Tuple[int, ...]
    operators: Tuple[Operator, ...]
    tensors: Tuple[int, ...]
    uncounted: Tuple[str, ...] = ()

    @property
    def multiply_adds(self) -> int:
        """Of forward, per image."""
        return sum(operator.multiply_adds for operator in self.operators)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(self.tensors)


# --- what is fitted to published speeds


class Constants(NamedTuple):
    """The constants of `roofline`, each with a physical meaning.

    ``convolution``: the share of a GPU's peak FLOP/s that matrix products and convolutions reach.
    ``memory``: the same of its memory's bytes/s. ``winograd``: how often fewer operations 3 x 3
    convolutions take, and ``winograd_5`` those of 5 x 5. ``tensor``: the share of tensor cores'
    peak. ``launch_s``: from one kernel to the next in training, MXNet's engine included, which
    takes 15 operators at a time; ``launch_inference_s``: in inference, where it takes all of them
    at once. ``outputs_per_core``: a convolution with so many results for each core is half as fast
    as one with very many. ``kepler`` and ``kepler_memory``: what a Kepler reaches of the two
    shares. ``update_s``: MXNet's own update of one parameter.
    """

    convolution: float
    memory: float
    winograd: float
    winograd_5: float
    tensor: float
    launch_s: float
    launch_inference_s: float
    outputs_per_core: float
    kepler: float
    kepler_memory: float
    update_s: float


FITTED = Constants(
    convolution=0.9403,
    memory=0.7895,
    winograd=1.355,
    winograd_5=2.680,
    tensor=0.4936,
    launch_s=15.93e-6,
    launch_inference_s=10.26e-6,
    outputs_per_core=115.4,
    kepler=0.5123,
    kepler_memory=0.5807,
    update_s=38.54e-6,
)


# --- the time of kernels

INPUT_BYTES_PER_S = 12e9  # 16 lanes of PCIe 3.0, as NCCL counts them
# What a convolution of MXNet's may take beside its arrays. cuDNN's Winograd for 5 x 5 keeps tiles
# of 8 x 8 for 4 x 4 pixels, of inputs and outputs; where they do not fit, another way is taken.
WORKSPACE_BYTES, TILES_5 = 2**30, 4
KEPLER, VOLTA = 3.7, 7.0  # compute capabilities
# Numbers moved for each that a convolution on tensor cores reads and writes: they take channels
# last, so cuDNN transposes MXNet's arrays before and after.
TRANSPOSED = 2
UPDATE_PASSES = 5  # SGD with momentum reads weight, gradient and momentum, and writes two
KEPT_BY_SGD = 1  # arrays of an optimizer's state beside each weight: the momentum


class KernelCost(NamedTuple):
    """One kernel: its operations, the numbers that it moves, and how many results it has.

    ``window``: the side of a convolution's window that Winograd's way serves, else 0.
    ``transposed``: numbers moved besides, if it runs on tensor cores and channels are not last.
    """

    kind: str
    flops: float
    moved: float
    results: float
    window: int = 0
    transposed: float = 0.0


class StepSeconds(NamedTuple):
    """Seconds of a step on one GPU: copying images, forward and backward, update."""

    input_s: float
    compute_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """All of them, one after the other."""
        return math.fsum(self)


class ExecutionSetting(NamedTuple):
    """How a network is run: ``dtype``, training or inference, and by which software.

    ``fused``: ReLU and additions cost nothing behind BatchNorm, as in NVIDIA's float16 build.
    ``channels_last``: arrays lie as tensor cores take them, as in all of NVIDIA's.
    ``pixel_bytes``: of a number of an image on its way to the GPU, 0 where it is there already.
    ``updates``: in how many pieces parameters are updated; None for MXNet's, one a parameter.
    ``tf32``: float32 products in TF32, where a GPU can. ``microbatches``: in how many equal parts
    the batch goes through the network. ``kept``: arrays of the optimizer's state, each as large as
    the weights.
    """

    dtype: str = FLOAT32
    training: bool = True
    fused: bool = False
    channels_last: bool = False
    pixel_bytes: int = 4
    updates: "int | None" = None
    tf32: bool = True
    microbatches: int = 1
    kept: int = KEPT_BY_SGD


def step_parts(
    work: Work, batch: float, gpu: GpuSpec, constants: Constants, setting: ExecutionSetting
) -> StepSeconds:
    """A step of ``batch`` images on one GPU."""
    parts = setting.microbatches
    compute_s = parts * math.fsum(
        sum(operator_s(operator, batch / parts, gpu, constants, setting))
        for operator in work.operators
    )
    if not setting.training:
        return StepSeconds(0.0, compute_s, 0.0)
    input_s = batch * math.prod(work.image_shape) * setting.pixel_bytes / INPUT_BYTES_PER_S
    one_pass_s = 4 * work.parameters / _memory_bytes_per_s(gpu, constants)
    compute_s += (parts - 1) * one_pass_s  # a later part adds: it reads the gradients before
    moved_s = update_passes(setting.kept) * one_pass_s
    pieces_s = (
        len(work.tensors) * constants.update_s
        if setting.updates is None
        else setting.updates * constants.launch_s
    )
    return StepSeconds(input_s, compute_s, moved_s + pieces_s)


def update_passes(kept: int) -> int:
    """How often an update in one kernel passes over memory as large as the weights.

    It reads weight, gradient and the ``kept`` arrays of its state, and writes all but the gradient.
    """
    return 3 + 2 * kept


def operator_s(
    operator: Operator, batch: float, gpu: GpuSpec, constants: Constants, setting: ExecutionSetting
) -> Tuple[float, float]:
    """Seconds of one operator's kernels, forward and backward."""
    launch_s = constants.launch_s if setting.training else constants.launch_inference_s
    forward, backward = (
        math.fsum(launch_s + _kernel_s(kernel, gpu, constants, setting) for kernel in each)
        for each in kernels(operator, batch, setting)
    )
    return forward, backward


def kernels(
    operator: Operator, batch: float, setting: ExecutionSetting
) -> Tuple[List[KernelCost], List[KernelCost]]:
    """The kernels of an operator in one step, forward and, in training, backward."""
    if operator.kind == MEMORY:
        return _moving(operator, batch, setting)
    moved = (operator.inputs + operator.outputs) * batch + operator.weights
    tiles = TILES_5 * 4 * (operator.inputs + operator.outputs) * batch
    fits = operator.kernel == 3 or (operator.kernel == 5 and tiles <= WORKSPACE_BYTES)
    window = operator.kernel if operator.kind == CONVOLUTION and fits else 0
    flops, results = 2.0 * operator.multiply_adds * batch, operator.outputs * batch
    transposed = 0.0
    if operator.kind == CONVOLUTION and not setting.channels_last:
        transposed = TRANSPOSED * (operator.inputs + operator.outputs) * batch
    kernel = KernelCost(operator.kind, flops, moved, results, window, transposed)
    # backward computes the gradient of the weights, and that of the input
    return [kernel], [kernel] * (1 + operator.data_gradient) if setting.training else []


def _moving(
    operator: Operator, batch: float, setting: ExecutionSetting
) -> Tuple[List[KernelCost], List[KernelCost]]:
    if setting.fused and operator.after_norm:
        return [], []
    ahead, back = operator.forward_moved, operator.backward_moved if setting.training else 0
    if operator.name == "BatchNorm" and not setting.training:
        ahead = 2 * operator.outputs  # no statistics
    results = operator.outputs * batch
    forward, backward = (
        [KernelCost(MEMORY, 0.0, moved * batch, results)] if moved else []
        for moved in (ahead, back)
    )
    return forward, backward


def _kernel_s(
    kernel: KernelCost, gpu: GpuSpec, constants: Constants, setting: ExecutionSetting
) -> float:
    size = 2 if setting.dtype == FLOAT16 else 4
    one_s = size / _memory_bytes_per_s(gpu, constants)
    memory_s, transposed_s = kernel.moved * one_s, 0.0
    if kernel.kind == MEMORY:
        return memory_s
    peak = gpu.flops[gpu.arithmetic(setting.dtype, setting.tf32)]
    if peak > gpu.flops[FLOAT32]:
        share = constants.tensor
        transposed_s = kernel.transposed * one_s
    else:
        fewer = {3: constants.winograd, 5: constants.winograd_5}.get(kernel.window, 1.0)
        share = constants.convolution * fewer
    compute_s = kernel.flops / (peak * share * _reached(gpu, constants.kepler))
    if kernel.kind == CONVOLUTION:
        compute_s *= 1 + constants.outputs_per_core * gpu.cores / kernel.results
    return max(compute_s, memory_s) + transposed_s


def _memory_bytes_per_s(gpu: GpuSpec, constants: Constants) -> float:
    return gpu.bytes_per_s * constants.memory * _reached(gpu, constants.kepler_memory)


def _reached(gpu: GpuSpec, kepler: float) -> float:
    """What a GPU reaches of the newer ones' shares: ``kepler`` as a Kepler, 1 from Volta on.

    Between the two the logarithm is interpolated by compute capability: a Maxwell, with which
    nothing was fitted, is half-way.
    """
    age = (VOLTA - gpu.capability) / (VOLTA - KEPLER)
    return float(kepler ** min(1.0, max(0.0, age)))
