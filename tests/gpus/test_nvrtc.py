"""The simulated NVRTC says what NVIDIA's own, from its wheel, says; and what it compiles, runs."""

import re

import mxnet as mx
import numpy as np
import pytest
from gpus.cuda_calls import no_peer_access
from gpus.machines import libraries
from gpus.nvrtc_calls import V100, Program, compile_simulated, compile_with_nvidia
from gpus.simulated import counting
from mxnet import nd

AXPY = """extern "C" __global__ void axpy(const float* x, float* y, float factor) {
  y[blockIdx.x * blockDim.x + threadIdx.x] += factor * x[blockIdx.x * blockDim.x + threadIdx.x];
}"""
KERNELS = """template <class T> __global__ void filled(T* out) { out[threadIdx.x] = T(1); }
namespace op { template <int n> struct Shape { int x[n]; size_t size; }; }
__launch_bounds__(512)
__global__ void shaped(size_t N, const op::Shape<2> out_shape, float* out) {
  out[0] = out_shape.x[1];
}
"""
GOOD = [
    Program(AXPY),
    Program(KERNELS, expressions=["filled<float>", "filled<double>", "shaped"]),
    *[Program(AXPY, [f"--gpu-architecture=compute_{arch}", "--std=c++11"]) for arch in (50, 60, 75, 80, 86, 90)],
    Program(AXPY, ["-arch=sm_80"]),
]
BAD = [
    Program(AXPY, ["--gpu-architecture=compute_70", "--made-up"]),
    Program(AXPY, ["--gpu-architecture=compute_99"]),
    Program(AXPY.replace("factor *", "nobody *")),
    Program(AXPY, expressions=["nobody"]),
]


@pytest.fixture(scope="module")
def real():
    return {str(program): answer for program, answer in zip([*GOOD, *BAD], compile_with_nvidia([*GOOD, *BAD]))}


@pytest.mark.parametrize("program", GOOD)
def test_ptx_has_the_version_and_the_target_of_the_real_ones_and_kernels_their_names(program, real):
    ours, its = compile_simulated(program), real[str(program)]
    assert its["directives"][0] == ".version 7.8"
    for key in ("status", "log", "directives", "lowered"):
        assert ours[key] == its[key], key


@pytest.mark.parametrize("program", BAD)
def test_a_wrong_program_is_refused_as_by_the_real_one(program, real):
    ours, its = compile_simulated(program), real[str(program)]
    assert ours["status"] == its["status"] != 0
    assert ours["lowered"] == its["lowered"] and ours["ptx"] == its["ptx"] == ""
    assert ours["log"].splitlines()[0] == its["log"].splitlines()[0]


def test_a_kernel_of_ones_own_runs_as_often_as_it_is_launched():
    x, y = nd.array(range(12), ctx=mx.gpu(0)), nd.ones((12,), ctx=mx.gpu(0))
    kernel = mx.rtc.CudaModule(AXPY).get_kernel("axpy", "const float *x, float *y, float factor")
    with counting() as happened:
        for _ in range(3):
            kernel.launch([x, y, 2.0], mx.gpu(0), (4, 1, 1), (3, 1, 1))
    assert (y.asnumpy() == 1 + 6 * np.arange(12)).all()
    assert happened.fused_launches == 3


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            lambda: [nd.zeros((4,), ctx=mx.gpu(1)), nd.zeros((4,), ctx=mx.gpu(0))],
            "reaches memory of gpu 1 without peer access",
        ),
        (lambda: [nd.zeros((4,), ctx=mx.cpu(0)), nd.zeros((4,), ctx=mx.gpu(0))], "pageable memory of the host"),
    ],
)
def test_memory_that_a_kernel_may_not_reach_is_a_fault(arrays, words, take_faults):
    x, y = arrays()
    kernel = mx.rtc.CudaModule(AXPY).get_kernel("axpy", "const float *x, float *y, float factor")
    x.wait_to_read()
    with no_peer_access(0, 1):
        kernel.launch([x, y, 2.0], mx.gpu(0), (1, 1, 1), (4, 1, 1))
        nd.waitall()
    [fault] = take_faults()
    assert words in fault


def test_every_source_of_fused_operators_that_was_met_here_compiles_with_the_real_nvrtc():
    """What g++ takes could be no CUDA C++."""
    folder = libraries() / "fused"
    newest = sorted(folder.glob("*.cu"), key=lambda path: path.stat().st_mtime)[-40:]
    sources = [path.read_text() for path in newest]
    programs = [
        Program(text, V100, re.findall(r"__global__ void (FusedKernel_\w+)", text))
        for text in sources
        if "op::" in text
    ]
    assert programs
    assert {answer["status"] for answer in compile_with_nvidia(programs)} == {0}
