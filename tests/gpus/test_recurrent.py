"""cuDNN's recurrent networks on simulated GPUs are MXNet's own on the CPU."""

import numpy as np
from gpus.compared import TOLERANCES, assert_close, draw_array, output_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from mxnet import cpu, gpu, nd

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
SIZES = st.integers(1, 4)


def count_weights(mode, width, hidden, layers, directions):
    rows = GATES[mode] * hidden
    inputs = [width] + [directions * hidden] * (layers - 1)
    return sum(directions * rows * (each + hidden + 2) for each in inputs)


@given(
    mode=st.sampled_from(sorted(GATES)), sizes=st.tuples(SIZES, SIZES, SIZES, SIZES),
    layers=st.integers(1, 3), both_ways=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
)  # fmt: skip
def test_recurrent_networks_their_states_and_their_gradients(mode, sizes, layers, both_ways, dtype):
    steps, batch, width, hidden = sizes
    directions = 1 + both_ways
    state = (layers * directions, batch, hidden)
    arrays = [
        draw_array(steps, batch, width),
        draw_array(count_weights(mode, width, hidden, layers, directions)),
        draw_array(*state),
    ]
    arrays += [draw_array(*state, seed=4)] * (mode == "lstm")

    def network(*arrays_on_device):
        how = dict(state_size=hidden, num_layers=layers, bidirectional=both_ways, mode=mode, state_outputs=True)
        outs = nd.RNN(*arrays_on_device, **how)
        return nd.concat(*(out.reshape(-1) for out in outs), dim=0)

    arrays = [array.astype("float16") for array in arrays]
    result, expected = (
        output_and_gradients(gpu(0), network, arrays, dtype),
        output_and_gradients(cpu(), network, arrays),
    )
    for on_gpu, on_cpu in zip(result, expected):
        assert_close(on_gpu, on_cpu, "float16" if dtype == "float16" else "float32")


def test_evaluation_is_as_training():
    arrays = [draw_array(3, 2, 4), draw_array(count_weights("gru", 4, 5, 2, 1)), draw_array(2, 2, 5)]
    outs = []
    for ctx in (gpu(0), cpu()):
        arrays_on_device = [nd.array(array, ctx=ctx) for array in arrays]
        outs.append(nd.RNN(*arrays_on_device, state_size=5, num_layers=2, mode="gru").asnumpy())
    np.testing.assert_allclose(*outs, rtol=10 * TOLERANCES["float32"], atol=1e-6)
