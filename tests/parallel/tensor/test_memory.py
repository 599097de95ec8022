"""What split channels take, planned, is what MXNet allocates for them."""

import mxnet as mx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.split_memory import count_channels, count_elsewhere, max_counted_devices
from support.splits import chains

from gluonlab.parallel.memory_estimate import ShardSizes

WITHIN = 0.05  # of what MXNet has allocated
NOTED = 4096  # bytes: sums of losses, rates, and gaps between the parameters of a bucket

cases = st.fixed_dictionaries(
    {
        # none with frozen layers: MXNet plans gradients in vain there
        "chain": chains.map(lambda drawn: (*drawn[:2], False, drawn[3])),
        "ways": st.integers(2, max_counted_devices(3)),
        "microbatches": st.sampled_from([None, 3]),
        "channels": st.sampled_from(["both", "column", "row"]),
        "shards": st.builds(lambda most, last: ShardSizes((most, last)), st.integers(100, 200), st.integers(1, 100)),
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
    for planned, in_vain, allocated in zip(*counts):
        assert planned - in_vain - NOTED < (1 + WITHIN) * allocated
        assert planned + NOTED > (1 - WITHIN) * allocated
