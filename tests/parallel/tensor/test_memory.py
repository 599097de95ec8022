"""The planned memory of tensor parallelism is what MXNet allocates."""

import mxnet as mx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.split_memory import count_channels, count_elsewhere, max_counted_devices
from support.splits import chains

from gluonlab.parallel.memory_estimate import ShardSizes

TOLERANCE = 0.05
SMALL_BYTES = 4096  # sums of losses, rates, and gaps between the parameters of a bucket

cases = st.fixed_dictionaries(
    {
        # without frozen layers: MXNet plans unused gradients there
        "chain": chains.map(lambda drawn: (*drawn[:2], False, drawn[3])),
        "ways": st.integers(2, max_counted_devices(3)),
        "microbatches": st.sampled_from([None, 3]),
        "channels": st.sampled_from(["both", "column", "row"]),
        "shards": st.tuples(st.integers(100, 200), st.integers(1, 100)).map(ShardSizes),
    }
)


@pytest.mark.cpu_only("MXNet counts what CPUs have allocated")
@given(cases)
@settings(max_examples=12, deadline=None)
@pytest.mark.long
def test_estimated_memory_of_tensor_parallelism_is_what_mxnet_allocates(case):
    if mx.runtime.Features().is_enabled("CUDA"):
        return  # with that build, tests/gpus/test_stage_memory.py counts what GPUs have
    counts = count_elsewhere(count_channels, case)
    assume(counts)
    for planned, unused, allocated in zip(*counts):
        assert planned - unused - SMALL_BYTES < (1 + TOLERANCE) * allocated
        assert planned + SMALL_BYTES > (1 - TOLERANCE) * allocated
