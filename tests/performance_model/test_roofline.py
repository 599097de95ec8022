"""The roofline model: properties of all networks, GPUs and sets of constants."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.performance_model.gpu_specifications import FLOAT16, FLOAT32, GPUS, TF32
from gluonlab.performance_model.roofline import (
    CONVOLUTION,
    DENSE,
    FITTED_CONSTANTS,
    MEMORY,
    ExecutionSetting,
    Operator,
    Work,
    operator_kernels,
    step_seconds,
)
from prediction.fit import EXPECTED_CONSTANTS

BATCHES = st.integers(1, 512)
GPU = st.sampled_from(sorted(GPUS))
COUNTS = st.integers(1, 10**7)


@st.composite
def works(draw):
    counts = dict.fromkeys(("multiply_adds", "inputs", "outputs", "weights", "forward_moved", "backward_moved"), COUNTS)
    operator = st.builds(
        Operator,
        kind=st.sampled_from([CONVOLUTION, DENSE, MEMORY]),
        name=st.just("op"),
        kernel=st.sampled_from([0, 1, 3, 5]),
        data_gradient=st.booleans(),
        after_norm=st.booleans(),
        **counts,
    )
    operators = draw(st.lists(operator, min_size=1, max_size=4))
    return Work("net", (3, 8, 8), tuple(operators), tuple(draw(st.lists(COUNTS, max_size=3))))


def seconds(work, batch, gpu, constants=FITTED_CONSTANTS, **setting):
    return step_seconds(work, batch, gpu, constants, ExecutionSetting(**setting)).seconds


@given(works(), BATCHES, GPU, st.floats(1, 10))
def test_a_better_gpu_is_never_slower(work, batch, name, factor):
    gpu = GPUS[name]
    more_flops = {kind: factor * flops for kind, flops in gpu.flops.items()}
    slow = seconds(work, batch, gpu)
    assert seconds(work, batch, replace(gpu, flops=more_flops)) <= slow
    assert seconds(work, batch, replace(gpu, bytes_per_s=factor * gpu.bytes_per_s)) <= slow


@given(works(), BATCHES, GPU)
def test_a_larger_batch_takes_longer_and_makes_more_images_a_second(work, batch, name):
    """But where 5 x 5 convolutions lose Winograd's way, whose workspace grows with the batch."""
    gpu = GPUS[name]
    one, two = seconds(work, batch, gpu), seconds(work, 2 * batch, gpu)
    assert two > one
    if all(operator.kernel != 5 for operator in work.operators):
        assert two <= 2 * one * (1 + 1e-12)


@given(works(), BATCHES, GPU)
def test_training_takes_longer_than_inference_and_more_numbers_take_longer(work, batch, name):
    gpu = GPUS[name]
    assert seconds(work, batch, gpu, training=False) < seconds(work, batch, gpu)
    more = replace(work, tensors=(*work.tensors, 10**6))
    assert seconds(more, batch, gpu) > seconds(work, batch, gpu)
    assert seconds(work, batch, gpu, fused=True) <= seconds(work, batch, gpu)


def inference_seconds(layer, batch):
    work, setting = Work("net", (1,), (layer,), ()), ExecutionSetting(training=False)
    return step_seconds(work, batch, GPUS["V100"], EXPECTED_CONSTANTS, setting).compute_s


@given(st.integers(10**6, 10**9), BATCHES)
def test_a_large_product_takes_the_time_of_its_operations(products, batch):
    layer = Operator(DENSE, "fc", multiply_adds=products, inputs=1, outputs=1, weights=1)
    expected = 2 * products * batch / (15.7e12 * EXPECTED_CONSTANTS.convolution)
    assert inference_seconds(layer, batch) == pytest.approx(EXPECTED_CONSTANTS.launch_inference_s + expected)


@given(st.integers(10**4, 10**8), BATCHES)
def test_memory_operators_take_the_time_of_their_bytes(elements, batch):
    relu = Operator(MEMORY, "relu", outputs=elements, forward_moved=2 * elements)
    expected = 2 * 4 * elements * batch / (900e9 * EXPECTED_CONSTANTS.memory)
    assert inference_seconds(relu, batch) == pytest.approx(EXPECTED_CONSTANTS.launch_inference_s + expected)


def test_a_convolution_on_tensor_cores_is_transposed_unless_channels_are_last():
    """By the bytes: twice what it reads and writes, in each of one forward and two backward."""
    layer = Operator(CONVOLUTION, "conv", 10**8, 10**6, 2 * 10**6, 9)
    work = Work("net", (1,), (layer,), ())

    def each(name, dtype, **setting):
        return seconds(work, 8, GPUS[name], EXPECTED_CONSTANTS, dtype=dtype, **setting)

    for name, dtype, size in (("V100", FLOAT16, 2), ("A100", FLOAT16, 2), ("A100", FLOAT32, 4)):
        more = each(name, dtype) - each(name, dtype, channels_last=True)
        moved = 3 * 2 * 3 * 10**6 * 8 * size
        assert more == pytest.approx(moved / (GPUS[name].bytes_per_s * EXPECTED_CONSTANTS.memory))
    for name, dtype in (("V100", FLOAT32), ("K80", FLOAT16)):  # no tensor cores
        assert each(name, dtype) == each(name, dtype, channels_last=True)


def test_a_batch_in_parts_is_passes_of_a_part_whose_gradients_are_added():
    """And one update, of weight, gradient and state, once each way."""
    layer = Operator(CONVOLUTION, "conv", 10**7, 10**5, 10**5, 10**6, 3)
    work, gpu = Work("net", (3, 8, 8), (layer,), (10**6,)), GPUS["V100"]
    whole, cut = (
        step_seconds(work, 64, gpu, EXPECTED_CONSTANTS, ExecutionSetting(microbatches=n, updates=1)) for n in (1, 4)
    )
    part = step_seconds(work, 16, gpu, EXPECTED_CONSTANTS, ExecutionSetting(updates=1))
    once = 4 * 10**6 / (900e9 * EXPECTED_CONSTANTS.memory)
    assert cut.compute_s == pytest.approx(4 * part.compute_s + 3 * once)
    assert cut.compute_s > whole.compute_s
    assert (cut.input_s, cut.update_s) == (whole.input_s, whole.update_s)
    for states in (0, 1, 2, 3):
        setting = ExecutionSetting(optimizer_states=states, updates=1)
        update_s = step_seconds(work, 64, gpu, EXPECTED_CONSTANTS, setting).update_s
        assert update_s == pytest.approx(EXPECTED_CONSTANTS.launch_s + (2 + states + 1 + states) * once)


def test_backward_computes_two_products_and_the_first_layer_one():
    layer = Operator(CONVOLUTION, "conv", 1000, 10, 10, 9, 3)
    first = replace(layer, data_gradient=False)
    for each, setting, expected in (
        (layer, ExecutionSetting(), (1, 2)),
        (first, ExecutionSetting(), (1, 1)),
        (layer, ExecutionSetting(training=False), (1, 0)),
    ):
        assert tuple(map(len, operator_kernels(each, 1, setting))) == expected


@pytest.mark.parametrize(
    ("gpu", "dtype", "arithmetic"),
    [
        ("K80", FLOAT32, FLOAT32), ("V100", FLOAT32, FLOAT32), ("V100", FLOAT16, FLOAT16),
        ("T4", FLOAT32, FLOAT32), ("A10G", FLOAT32, TF32), ("A100", FLOAT32, TF32),
        ("A100", FLOAT16, FLOAT16),
    ],
)  # fmt: skip
def test_float32_is_tf32_from_ampere_on(gpu, dtype, arithmetic):
    assert GPUS[gpu].arithmetic(dtype) == arithmetic


def test_a_maxwell_lies_between_a_kepler_and_a_volta():
    layer = Operator(DENSE, "fc", multiply_adds=10**9, inputs=1, outputs=1, weights=1)
    work = Work("net", (1,), (layer,), ())

    def share(capability):
        gpu = replace(GPUS["V100"], capability=capability)
        return 1 / seconds(work, 64, gpu, training=False)

    assert share(3.7) < share(5.2) < share(7.0) == share(8.6)
