"""Roofline model: predicts the time of a network's kernels on a GPU.

The time of a kernel is the time to launch it, plus the longer of two times:

- the number of operations, divided by the fraction of the GPU's peak FLOP/s that the kernel
  reaches,
- the number of bytes read and written, divided by the fraction of the peak bandwidth that the
  kernel reaches.

Source of the model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance
model for multicore architectures" (2009). The fractions depend on the GPU's generation
(`_generation_factor`). MXNet is not imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, NamedTuple, Tuple

from gluonlab.performance_model.gpu_specifications import FLOAT16, FLOAT32, GpuSpec

CONVOLUTION, DENSE, MEMORY = "convolution", "dense", "memory"
DEPTHWISE = "depthwise convolution"  # the name of a convolution whose groups have one channel each


@dataclass(frozen=True)
class Operator:
    """The work of an operator in a graph. Counts are per image, except ``weights``.

    Attributes:
        kind: CONVOLUTION, DENSE, or MEMORY for operators that only read and write.
        name: the name of the operator.
        multiply_adds: multiply-adds in forward.
        inputs: elements of the input.
        outputs: elements of the output.
        weights: elements of the parameters, independent of the batch.
        kernel: the side of a convolution's window, if the window is square and the convolution has
            stride 1, no dilation and no groups; otherwise 0.
        data_gradient: whether backward computes a gradient of the input.
        forward_moved: elements that a MEMORY operator reads and writes in forward.
        backward_moved: elements that a MEMORY operator reads and writes in backward.
        after_norm: whether the operator is a ReLU or an addition, and follows BatchNorm or an
            addition.
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
    """The operators of a network for images of one shape.

    ``tensors``: the number of elements of each trained parameter, without running statistics.
    ``uncounted``: names of operators for which only the memory traffic is counted, not the
    multiply-adds.
    """

    name: str
    image_shape: Tuple[int, ...]
    operators: Tuple[Operator, ...]
    tensors: Tuple[int, ...]
    uncounted: Tuple[str, ...] = ()

    @property
    def multiply_adds(self) -> int:
        """Return the multiply-adds of forward, per image."""
        return sum(operator.multiply_adds for operator in self.operators)

    @property
    def parameters(self) -> int:
        """Return the number of elements of all trained parameters."""
        return sum(self.tensors)


# --- constants fitted to published speeds


class ModelConstants(NamedTuple):
    """The constants of the roofline model, each with a physical meaning.

    Attributes:
        convolution: the fraction of a GPU's peak FLOP/s that matrix products and convolutions
            reach.
        memory: the fraction of the memory's bandwidth that kernels reach.
        winograd: the factor by which Winograd's algorithm speeds up 3 x 3 convolutions.
        winograd_5: the factor by which Winograd's algorithm speeds up 5 x 5 convolutions.
        tensor: the fraction of the tensor cores' peak FLOP/s that kernels reach.
        launch_s: seconds to launch a kernel in training, where MXNet's engine queues 15 operators
            at once.
        launch_inference_s: seconds to launch a kernel in inference, where MXNet's engine queues all
            operators at once.
        outputs_per_core: a convolution with this number of outputs per core runs at half speed.
        kepler: the factor that reduces the fraction of FLOP/s on a Kepler GPU.
        kepler_memory: the factor that reduces the fraction of bandwidth on a Kepler GPU.
        update_s: seconds that MXNet takes to update one parameter.
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


FITTED_CONSTANTS = ModelConstants(
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
# The workspace that MXNet allows a convolution, in bytes. cuDNN's Winograd algorithm for 5 x 5
# windows stores a tile of 8 x 8 elements for each 4 x 4 pixels of inputs and outputs, which is 4
# times as many elements. If the tiles do not fit, cuDNN uses another algorithm.
WORKSPACE_BYTES, WINOGRAD_5_TILES = 2**30, 4
KEPLER, VOLTA = 3.7, 7.0  # compute capabilities
# Tensor cores need channels last, so cuDNN transposes MXNet's arrays before and after a
# convolution. Each element of inputs and outputs is read and written once more.
TRANSPOSE_PASSES = 2
UPDATE_PASSES = 5  # SGD with momentum reads weight, gradient and momentum, and writes two
SGD_STATES = 1  # arrays of state for each weight: the momentum


class KernelCost(NamedTuple):
    """The work of a kernel.

    Attributes:
        kind: CONVOLUTION, DENSE or MEMORY.
        flops: number of operations, that is, multiplications and additions.
        moved_elements: elements that the kernel reads and writes.
        output_elements: elements of the output.
        window: the side of the window, if Winograd's algorithm is possible; otherwise 0.
        transposed_elements: further elements read and written on tensor cores, to transpose arrays
            whose channels are not last.
    """

    kind: str
    flops: float
    moved_elements: float
    output_elements: float
    window: int = 0
    transposed_elements: float = 0.0


class StepSeconds(NamedTuple):
    """The time of each part of a step on one GPU, in seconds.

    ``input_s``: copying images to the GPU. ``compute_s``: forward and backward. ``update_s``:
    updating the weights.
    """

    input_s: float
    compute_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """Return the sum of the parts, which run one after another."""
        return math.fsum(self)


class ExecutionSetting(NamedTuple):
    """The settings and the software with which a network runs.

    Attributes:
        dtype: "float32" or "float16".
        training: True for training, False for inference.
        fused: whether ReLU and additions after BatchNorm cost nothing, as in NVIDIA's float16 build
            of MXNet.
        channels_last: whether arrays have the layout that tensor cores need, as in NVIDIA's builds.
        pixel_bytes: bytes per element of an image that is copied to the GPU; 0 if the images are
            already on the GPU.
        updates: the number of kernels that update parameters; None for one update per parameter,
            as in MXNet.
        tf32: whether float32 products use TF32 on GPUs that support it.
        microbatches: the number of equal parts into which the batch is divided.
        optimizer_states: the number of state arrays of the optimizer, each as large as the weights.
    """

    dtype: str = FLOAT32
    training: bool = True
    fused: bool = False
    channels_last: bool = False
    pixel_bytes: int = 4
    updates: "int | None" = None
    tf32: bool = True
    microbatches: int = 1
    optimizer_states: int = SGD_STATES


def step_seconds(
    work: Work, batch: float, gpu: GpuSpec, constants: ModelConstants, setting: ExecutionSetting
) -> StepSeconds:
    """Return how long each part of a step with ``batch`` images takes on one GPU."""
    passes = setting.microbatches
    compute_s = passes * math.fsum(
        sum(operator_seconds(operator, batch / passes, gpu, constants, setting)) for operator in work.operators
    )
    if not setting.training:
        return StepSeconds(0.0, compute_s, 0.0)
    input_s = batch * math.prod(work.image_shape) * setting.pixel_bytes / INPUT_BYTES_PER_S
    one_pass_s = 4 * work.parameters / _memory_bytes_per_s(gpu, constants)
    # later microbatches add to the gradients, so they also read them
    compute_s += (passes - 1) * one_pass_s
    moved_s = arrays_per_update(setting.optimizer_states) * one_pass_s
    pieces_s = (
        len(work.tensors) * constants.update_s if setting.updates is None else setting.updates * constants.launch_s
    )
    return StepSeconds(input_s, compute_s, moved_s + pieces_s)


def arrays_per_update(optimizer_states: int) -> int:
    """Return how many weight-sized arrays an update in one kernel reads and writes in total.

    The update reads the weight, the gradient and the ``optimizer_states`` state arrays. It writes
    all of these arrays except the gradient.
    """
    return 3 + 2 * optimizer_states


def operator_seconds(
    operator: Operator, batch: float, gpu: GpuSpec, constants: ModelConstants, setting: ExecutionSetting
) -> Tuple[float, float]:
    """Return how long an operator's kernels take for ``batch`` images: (forward, backward)."""
    launch_s = constants.launch_s if setting.training else constants.launch_inference_s
    forward, backward = (
        math.fsum(launch_s + _kernel_seconds(kernel, gpu, constants, setting) for kernel in direction)
        for direction in operator_kernels(operator, batch, setting)
    )
    return forward, backward


def operator_kernels(
    operator: Operator, batch: float, setting: ExecutionSetting
) -> Tuple[List[KernelCost], List[KernelCost]]:
    """Return the kernels of an operator for ``batch`` images: (forward, backward).

    In inference there are no backward kernels.
    """
    if operator.kind == MEMORY:
        return _memory_kernels(operator, batch, setting)
    moved_elements = (operator.inputs + operator.outputs) * batch + operator.weights
    tiles = WINOGRAD_5_TILES * 4 * (operator.inputs + operator.outputs) * batch
    has_winograd = operator.kernel == 3 or (operator.kernel == 5 and tiles <= WORKSPACE_BYTES)
    window = operator.kernel if operator.kind == CONVOLUTION and has_winograd else 0
    flops, output_elements = 2.0 * operator.multiply_adds * batch, operator.outputs * batch
    transposed_elements = 0.0
    if operator.kind == CONVOLUTION and not setting.channels_last:
        transposed_elements = TRANSPOSE_PASSES * (operator.inputs + operator.outputs) * batch
    kernel = KernelCost(operator.kind, flops, moved_elements, output_elements, window, transposed_elements)
    # Backward computes the gradient of the weights, and often the gradient of the input. Each takes
    # as long as forward.
    return [kernel], [kernel] * (1 + operator.data_gradient) if setting.training else []


def _memory_kernels(
    operator: Operator, batch: float, setting: ExecutionSetting
) -> Tuple[List[KernelCost], List[KernelCost]]:
    """Return (forward, backward) kernels of an operator that is limited by memory traffic."""
    if setting.fused and operator.after_norm:
        return [], []
    forward_moved, backward_moved = operator.forward_moved, operator.backward_moved if setting.training else 0
    if operator.name == "BatchNorm" and not setting.training:
        forward_moved = 2 * operator.outputs  # no statistics
    output_elements = operator.outputs * batch
    forward, backward = (
        [KernelCost(MEMORY, 0.0, moved * batch, output_elements)] if moved else []
        for moved in (forward_moved, backward_moved)
    )
    return forward, backward


def _kernel_seconds(kernel: KernelCost, gpu: GpuSpec, constants: ModelConstants, setting: ExecutionSetting) -> float:
    """Return the longer of the computing time and the memory time of a kernel, in seconds.

    On tensor cores, the time of transposed copies is added.
    """
    element_bytes = 2 if setting.dtype == FLOAT16 else 4
    seconds_per_element = element_bytes / _memory_bytes_per_s(gpu, constants)
    memory_s, transposed_s = kernel.moved_elements * seconds_per_element, 0.0
    if kernel.kind == MEMORY:
        return memory_s
    # a peak above that of float32 is reached on tensor cores
    peak = gpu.flops[gpu.arithmetic(setting.dtype, setting.tf32)]
    if peak > gpu.flops[FLOAT32]:
        share = constants.tensor
        transposed_s = kernel.transposed_elements * seconds_per_element
    else:
        winograd_factor = {3: constants.winograd, 5: constants.winograd_5}.get(kernel.window, 1.0)
        share = constants.convolution * winograd_factor
    compute_s = kernel.flops / (peak * share * _generation_factor(gpu, constants.kepler))
    # a convolution with few outputs leaves cores idle
    if kernel.kind == CONVOLUTION:
        compute_s *= 1 + constants.outputs_per_core * gpu.cores / kernel.output_elements
    return max(compute_s, memory_s) + transposed_s


def _memory_bytes_per_s(gpu: GpuSpec, constants: ModelConstants) -> float:
    return gpu.bytes_per_s * constants.memory * _generation_factor(gpu, constants.kepler_memory)


def _generation_factor(gpu: GpuSpec, kepler: float) -> float:
    """Return the factor, at most 1, that accounts for the lower efficiency of older GPUs.

    The factor is ``kepler`` for a Kepler GPU, and 1 from Volta on. Between Kepler and Volta, the
    logarithm of the factor is interpolated by compute capability. Maxwell is halfway between them,
    and Maxwell GPUs were not used for the fit.
    """
    age = (VOLTA - gpu.capability) / (VOLTA - KEPLER)
    return float(kepler ** min(1.0, max(0.0, age)))
