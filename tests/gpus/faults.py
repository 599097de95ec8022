"""A plugin of pytest, for a process on a simulated machine: a test fails if the machine finds a fault, or if memory is left over.

MXNet's pool keeps what is freed, and hands it out again with what was in it. Without it every array is memory of its own, full of
NaN when it is new and again when it is freed, so that whoever reads too early or too late reads NaN.
"""

import gc
import os
import sys

import pytest
from gpus import simulated

os.environ["MXNET_GPU_MEM_POOL_TYPE"] = "Unpooled"


def bytes_in_use():
    """Of every GPU, once everything that is queued is done and what nobody holds is freed."""
    if "mxnet" not in sys.modules:
        return []
    import mxnet as mx

    gc.collect()
    mx.nd.waitall()
    return [simulated.bytes_in_use(device) for device in range(mx.context.num_gpus())]


@pytest.fixture(autouse=True)
def faultless():
    simulated.forget_faults()
    before = bytes_in_use()
    yield
    left = simulated.faults()
    simulated.forget_faults()
    assert left == [], "the simulated GPUs found faults"
    grown = [after - now for now, after in zip(before, bytes_in_use())]
    assert max(grown, default=0) <= 0, "bytes of each GPU are left over"


@pytest.fixture
def planted():
    """``planted()``: the faults so far, which are expected then, and forgotten."""

    def take():
        found = simulated.faults()
        simulated.forget_faults()
        return found

    return take
