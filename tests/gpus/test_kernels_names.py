"""What is read from the name of a kernel, which is all that the table of kernels knows of it."""

import ctypes

import pytest
from gpus import simulated
from mxnet import gpu, nd

MXNET = "mxnet::op::mxnet_op::"


def parse_name(name):
    """The kernel, and its parameters: ``Shape(2)`` for ``mshadow::Shape<2>``, and a star behind a
    pointer.
    """
    buffer = ctypes.create_string_buffer(1 << 14)
    ctypes.CDLL("libcudart.so.11.0").gpus_kernel_name(name.encode(), buffer, ctypes.c_long(len(buffer)))
    kernel, *parameters = buffer.value.decode().split("\n")
    return kernel, parameters


def generic_name(operation, *parameters):
    """The name of MXNet's kernel for one operation."""
    types = ", ".join(parameters)
    return f"void {MXNET}mxnet_generic_kernel<{operation}, {types}>(int, {types})"


HALF = "mshadow::half::half_t"
PLAN = f"mshadow::expr::Plan<mshadow::Tensor<mshadow::gpu, 1, {HALF}>, {HALF}>"
SCALAR = "mshadow::expr::Plan<mshadow::expr::ScalarExp<float>, float>"
DROPOUT = "mxnet::op::DropoutOp<mshadow::gpu, float>::DropoutKernel"
GENERATOR = "mxnet::common::random::RandGenerator<mshadow::gpu, float>"
UNNAMED = "mxnet::op::(anonymous namespace)::"
CASES = {
    "generic": (
        generic_name(f"{MXNET}op_with_req<mxnet::op::mshadow_op::plus, 1>", "float*", "float*"),
        "mxnet_generic_kernel(op_with_req(plus,1),float*,float*)",
        ["int", "float*", "float*"],
    ),
    "expression": (
        f"void mshadow::cuda::MapPlanKernel<mshadow::sv::saveto, 8, {PLAN}, {SCALAR} >"
        f"({PLAN}, int, mshadow::Shape<2>, {SCALAR})",
        "MapPlanKernel(saveto,8,Plan(Tensor(gpu,1,half_t),half_t),Plan(ScalarExp(float),float))",
        ["Plan(Tensor(gpu,1,half_t),half_t)", "int", "Shape(2)", "Plan(ScalarExp(float),float)"],
    ),
    "nested": (
        generic_name(DROPOUT, GENERATOR, "int", "unsigned char*"),
        "mxnet_generic_kernel(DropoutKernel,RandGenerator(gpu,float),int,unsigned char*)",
        ["int", "RandGenerator(gpu,float)", "int", "unsigned char*"],
    ),
    "anonymous": (
        f"void {MXNET}mxnet_generic_kernel<{UNNAMED}CopyForShuffle, float const*>"
        f"(int, {UNNAMED}ShapeAndStride, float const*)",
        "mxnet_generic_kernel(CopyForShuffle,float*)",
        ["int", "ShapeAndStride", "float*"],
    ),
    "plain": (
        "mxnet::common::random::rand_generator_seed_kernel(curandStatePhilox4_32_10*, int, unsigned int)",
        "rand_generator_seed_kernel",
        ["curandStatePhilox4_32_10*", "int", "unsigned int"],
    ),
}


@pytest.mark.parametrize(("name", "kernel", "parameters"), CASES.values(), ids=CASES)
def test_the_parts_of_a_name(name, kernel, parameters):
    assert parse_name(name) == (kernel, parameters)


def test_the_names_that_mxnet_launches_are_those():
    with simulated.counting() as happened:
        nd.array([1.0, 2.0], ctx=gpu(0)).square().asnumpy()
    (kernel,) = [parse_name(name)[0] for name in happened.names if "square" in name]
    assert kernel == "mxnet_generic_kernel(op_with_req(square,1),float*,float*)"


def test_a_kernel_of_mxnet_that_nobody_wrote_is_a_fault(take_faults):
    image, box = nd.ones((1, 1, 4, 4), ctx=gpu(0)), nd.array([[0, 0, 0, 3, 3]], ctx=gpu(0))
    nd.ROIPooling(image, box, pooled_size=(2, 2), spatial_scale=1).wait_to_read()
    (fault,) = take_faults()
    assert fault.startswith("unknown kernel: void mshadow::cuda::ROIPoolForwardKernel<float>(")
