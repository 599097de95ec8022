"""What processes have of their own comes together, and what rank 0 reads goes to all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import device
from support.process_group import run_in_threads

from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.runs.checkpoint import Checkpoint
from gluonlab.training.checkpoint_writer import CheckpointGather, broadcast_checkpoint

SHAPES = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), max_size=4)  # of a process's arrays


def own_of(rank, shapes, round_):
    rng = np.random.default_rng([rank, round_])
    return {f"a/{rank}/{place}": rng.standard_normal(shape).astype("float32") for place, shape in enumerate(shapes)}


@settings(max_examples=20)
@given(st.lists(SHAPES, min_size=2, max_size=4))
def test_every_process_gets_the_arrays_and_values_of_all(shapes):
    """Twice, as for two checkpoints: the first one's arrays stay what they were."""

    def work(group):
        gather, gathered = CheckpointGather(group), []
        for round_ in range(2):
            arrays = {
                name: nd.array(value, ctx=device()).copyto(nd.zeros((1,)).context)
                for name, value in own_of(group.rank, shapes[group.rank], round_).items()
            }
            gathered.append(gather(arrays, {f"seen/{group.rank}": group.rank + round_}))
        return gathered

    for gathered in run_in_threads(len(shapes), work):
        for round_, (arrays, counts) in enumerate(gathered):
            expected = {
                name: value
                for rank, of_rank in enumerate(shapes)
                for name, value in own_of(rank, of_rank, round_).items()
            }
            assert list(arrays) == list(expected)
            for name, value in expected.items():
                np.testing.assert_array_equal(arrays[name].asnumpy(), value)
            assert counts == {f"seen/{rank}": rank + round_ for rank in range(len(shapes))}


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
