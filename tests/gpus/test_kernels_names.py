"""What is read from the name of a kernel, which is all that the table of kernels knows of it."""

import ctypes

import pytest
from gpus import simulated
from mxnet import gpu, nd

MXNET = "mxnet::op::mxnet_op::"


def parts(name):
    """The kernel, and its parameters: ``Shape(2)`` for ``mshadow::Shape<2>``, and a star behind a
    pointer.
    """
    buffer = ctypes.create_string_buffer(1 << 14)
    ctypes.CDLL("libcudart.so.11.0").gpus_kernel_name(name.encode(), buffer, ctypes.c_long(len(buffer)))
    kernel, *parameters = buffer.value.decode().split("\n")
    return kernel, parameters


@pytest.mark.parametrize(
    "name, kernel, parameters",
    [
        (
            (
                "void "
                f"{MXNET}mxnet_generic_kernel<{MXNET}op_with_req<mxnet::op::mshadow_op::plus, 1>, "
                "float*, float*, float*>(int, float*, float*, float*)"
            ),
            "mxnet_generic_kernel(op_with_req(plus,1),float*,float*,float*)",
            ["int", "float*", "float*", "float*"],
        ),
        (
            (
                "void mshadow::cuda::MapPlanKernel<mshadow::sv::saveto, 8, "
                "mshadow::expr::Plan<mshadow::Tensor<mshadow::gpu, 1, mshadow::half::half_t>, "
                "mshadow::half::half_t>, mshadow::expr::Plan<mshadow::expr::ScalarExp<float>, "
                "float> >(mshadow::expr::Plan<mshadow::Tensor<mshadow::gpu, 1, "
                "mshadow::half::half_t>, mshadow::half::half_t>, int, mshadow::Shape<2>, "
                "mshadow::expr::Plan<mshadow::expr::ScalarExp<float>, float>)"
            ),
            "MapPlanKernel(saveto,8,Plan(Tensor(gpu,1,half_t),half_t),Plan(ScalarExp(float),float))",
            ["Plan(Tensor(gpu,1,half_t),half_t)", "int", "Shape(2)", "Plan(ScalarExp(float),float)"],
        ),
        (
            (
                f"void {MXNET}mxnet_generic_kernel<mxnet::op::DropoutOp<mshadow::gpu, "
                "float>::DropoutKernel, mxnet::common::random::RandGenerator<mshadow::gpu, "
                "float>, int, unsigned char*>(int, "
                "mxnet::common::random::RandGenerator<mshadow::gpu, float>, int, unsigned char*)"
            ),
            "mxnet_generic_kernel(DropoutKernel,RandGenerator(gpu,float),int,unsigned char*)",
            ["int", "RandGenerator(gpu,float)", "int", "unsigned char*"],
        ),
        (
            (
                f"void {MXNET}mxnet_generic_kernel<mxnet::op::(anonymous "
                "namespace)::CopyForShuffle, float const*>(int, "
                "mxnet::op::(anonymous namespace)::ShapeAndStride, float const*)"
            ),
            "mxnet_generic_kernel(CopyForShuffle,float*)",
            ["int", "ShapeAndStride", "float*"],
        ),
        (
            ("mxnet::common::random::rand_generator_seed_kernel(curandStatePhilox4_32_10*, int, unsigned int)"),
            "rand_generator_seed_kernel",
            ["curandStatePhilox4_32_10*", "int", "unsigned int"],
        ),
    ],
    ids=["generic", "expression", "nested", "anonymous", "plain"],
)
def test_the_parts_of_a_name(name, kernel, parameters):
    assert parts(name) == (kernel, parameters)


def test_the_names_that_mxnet_launches_are_those():
    with simulated.counting() as happened:
        nd.array([1.0, 2.0], ctx=gpu(0)).square().asnumpy()
    (kernel,) = [parts(name)[0] for name in happened.names if "square" in name]
    assert kernel == "mxnet_generic_kernel(op_with_req(square,1),float*,float*)"


def test_a_kernel_of_mxnet_that_nobody_wrote_is_a_fault(planted):
    image, box = nd.ones((1, 1, 4, 4), ctx=gpu(0)), nd.array([[0, 0, 0, 3, 3]], ctx=gpu(0))
    nd.ROIPooling(image, box, pooled_size=(2, 2), spatial_scale=1).wait_to_read()
    (fault,) = planted()
    assert fault.startswith("unknown kernel: void mshadow::cuda::ROIPoolForwardKernel<float>(")
