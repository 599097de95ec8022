"""Plugin of pytest: a test fails if the simulated machine finds a fault, or if memory is left over.

MXNet's pool keeps what is freed, and hands it out again with what was in it. Without it every array
is memory of its own, full of NaN when it is new and again when it is freed, so that whoever reads
too early or too late reads NaN.
"""

import gc
import os
import sys

import pytest
from gpus import simulated

os.environ["MXNET_GPU_MEM_POOL_TYPE"] = "Unpooled"


def bytes_in_use():
    """Return the allocated bytes of each GPU, after all queued work and a garbage collection."""
    if "mxnet" not in sys.modules:
        return []
    import mxnet as mx

    gc.collect()
    mx.nd.waitall()
    return [simulated.bytes_in_use(device) for device in range(mx.context.num_gpus())]


@pytest.fixture(scope="session", autouse=True)
def scratch_memory():
    """Allocate what MXNet keeps for each device, so that no test appears to leak it.

    This is scratch memory of the largest size so far, and four states of Dropout.
    """
    if "mxnet" not in sys.modules:
        return
    import mxnet as mx

    for ctx in map(mx.gpu, range(mx.context.num_gpus())):
        # cuDNN wants 1 MiB
        image, weight = mx.nd.ones((1, 16, 50, 50), ctx=ctx), mx.nd.ones((1, 16, 3, 3), ctx=ctx)
        mx.nd.Convolution(image, weight, kernel=(3, 3), num_filter=1, no_bias=True, cudnn_tune="off")
        for _ in range(4):
            mx.nd.Dropout(weight, mode="always")
    mx.nd.waitall()


@pytest.fixture(autouse=True)
def fail_on_faults():
    simulated.forget_faults()
    before = bytes_in_use()
    yield
    left = simulated.faults()
    simulated.forget_faults()
    assert left == [], "the simulated GPUs found faults"
    bytes_in_use()
    # The engine says that an operator is done, and then frees what the operator held: that is
    # waited for.
    grown = [simulated.bytes_left(device, expected) - expected for device, expected in enumerate(before)]
    assert max(grown, default=0) <= 0, f"bytes of each GPU are left over: {grown}"


@pytest.fixture
def take_faults():
    """Return a function that returns the faults so far, and forgets them, since they are expected."""

    def take():
        result = simulated.faults()
        simulated.forget_faults()
        return result

    return take
