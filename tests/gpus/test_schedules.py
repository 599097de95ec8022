"""Schedules on GPUs: the sums of CPU devices, to the bit, whatever the streams' delays."""

import mxnet as mx
import numpy as np
import pytest
from gpus.commands import run_python
from gpus.machines import v100s
from gpus.simulated import bytes_in_use
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.schedule_executor import Executor, allreduce

NAMES = sorted(ALGORITHMS)


def sum_by_schedule(kind, name, contributions, dtype):
    """What is left on each device of a kind."""
    arrays = [[nd.array(part, ctx=kind(rank), dtype=dtype) for part in own] for rank, own in enumerate(contributions)]
    allreduce(make_schedule(name, len(contributions)), arrays)
    return [[array.asnumpy().tobytes() for array in own] for own in arrays]


@settings(max_examples=40)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 8),
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.sampled_from(["float32", "float64", "float16", "int32"]),
    st.integers(0, 1000),
)
def test_sums_have_the_bits_of_cpu_devices(name, world_size, sizes, dtype, seed):
    """float16 among them, of which add_n would read and write pairs, beyond the end of a chunk."""
    random = np.random.RandomState(seed)
    contributions = [[random.normal(0, 10, size) for size in sizes] for _ in range(world_size)]
    assert sum_by_schedule(mx.gpu, name, contributions, dtype) == sum_by_schedule(mx.cpu, name, contributions, dtype)


DELAYED = """
import sys
import gluonlab
import mxnet as mx
import numpy as np
from mxnet import nd
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.schedule_executor import Executor

wrong = []
for name in sys.argv[1:]:
    for world_size in (4, 5, 8):
        arrays = [[nd.empty((101,), mx.gpu(rank))] for rank in range(world_size)]
        executor = Executor(make_schedule(name, world_size), arrays)
        for turn in range(3):  # queued behind each other
            for rank, (array,) in enumerate(arrays):
                array[:] = rank + turn
            executor.run()
        total = sum(range(world_size)) + 2 * world_size
        wrong += [(name, world_size)] * any((array.asnumpy() != total).any() for (array,) in arrays)
print(wrong)
"""


@pytest.mark.parametrize("names", [NAMES[:4], NAMES[4:]], ids=" ".join)
def test_moves_of_joined_chunks_wait_for_each_other_under_delays(names, tmp_path):
    process = run_python(v100s(8, delay_us=200, promises_peers=True), tmp_path, "-c", DELAYED, *names)
    assert (process.returncode, process.stdout.strip()) == (0, "[]"), process.stderr


def test_memory_for_what_arrives_is_as_large_as_what_is_added():
    """Of halving_doubling among 4: a half and a quarter of the array, on each GPU."""
    arrays = [[nd.zeros((2**20,), mx.gpu(rank))] for rank in range(4)]
    nd.waitall()
    before = [bytes_in_use(rank) for rank in range(4)]
    executor = Executor(make_schedule("halving_doubling", 4), arrays)
    nd.waitall()
    assert [bytes_in_use(rank) - own for rank, own in enumerate(before)] == [3 * 2**20] * 4
    executor.run()
