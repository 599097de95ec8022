"""The checkpoint of several processes: rank 0 gathers their state, and sends all what it reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.process_group import run_in_threads
from support.reference import arrays_equal, cpu_contexts

from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.runs.checkpoint import Checkpoint
from gluonlab.training.checkpoint_writer import CheckpointGather, broadcast_checkpoint

SHAPES = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), max_size=4)  # of a process's arrays


@settings(max_examples=20)
@given(st.lists(SHAPES, min_size=2, max_size=4))
def test_every_process_gets_the_arrays_and_values_of_all(shapes):
    """Twice, as for two checkpoints: the arrays of the first stay unchanged."""
    random = np.random.RandomState(0)
    checkpoints = [
        [
            {f"a/{rank}/{index}": random.normal(size=shape).astype("float32") for index, shape in enumerate(of_rank)}
            for rank, of_rank in enumerate(shapes)
        ]
        for _ in range(2)
    ]

    def work(group):
        gather = CheckpointGather(group)
        return [
            gather(
                {name: nd.array(value, ctx=cpu_contexts(1)[0]) for name, value in arrays[group.rank].items()},
                {f"seen/{group.rank}": group.rank + number},
            )
            for number, arrays in enumerate(checkpoints)
        ]

    for results in run_in_threads(len(shapes), work):
        for number, (arrays, counts) in enumerate(results):
            expected = {name: array for of_rank in checkpoints[number] for name, array in of_rank.items()}
            assert list(arrays) == list(expected)
            assert arrays_equal([array.asnumpy() for array in arrays.values()], expected.values())
            assert counts == {f"seen/{rank}": rank + number for rank in range(len(shapes))}


def test_a_single_process_gathers_its_own_state():
    arrays, counts = {"a": nd.ones((2,))}, {"seen/0": 3}
    assert CheckpointGather(SINGLE_PROCESS)(arrays, counts) == (arrays, counts)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_all_get_the_checkpoint_of_rank_0(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    state = {"step": 7, "accuracy": None, "losses": {"sum": 0.1 + 0.2}}

    def work(group):
        array = nd.array(values, dtype=dtype)
        read = Checkpoint({"w": array}, {"optimizer/sgd": array[0]}, {}, state)
        return broadcast_checkpoint(read if group.rank == 0 else None, group)

    for parameters, optimizer, devices, found in run_in_threads(3, work):
        assert found == state and not devices
        assert parameters["w"].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(parameters["w"].asnumpy(), values)
        np.testing.assert_array_equal(optimizer["optimizer/sgd"].asnumpy(), values[0])
