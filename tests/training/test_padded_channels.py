"""Runs with padded channels end as runs without padding do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_runs import drawn_run_settings, load_few_digits, register_drawn_network
from support.reference import parameter_arrays

from gluonlab.config import TrainConfig
from gluonlab.models import rewrite_network
from gluonlab.models.cpu_channel_padding import Padding
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

IMAGES = 50  # two steps of 20 images, and one of 10


def train_padded(layers, multiples, options):
    """Return the parameters, running statistics and validation losses of a run."""
    with register_drawn_network(layers), pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite_network, "choose_padding", lambda ctx: Padding(multiples))
        result = train(TrainConfig(**options), reporter=Reporter(), dataset=load_few_digits(IMAGES))
    return [*parameter_arrays(result.net), np.array([epoch.val_loss for epoch in result.history])]


@pytest.mark.cpu_only("channels are padded on CPUs")
@settings(max_examples=5)
@given(
    layers=st.lists(st.sampled_from(["convolution", "convolution", "norm", "pooling"]), max_size=4),
    count=st.sampled_from([1, 3]),
    microbatches=st.sampled_from([None, 2, 3]),
    sync_bn=st.booleans(),
    multiples=st.sampled_from([(8,), (16,), (8, 16)]),
)
def test_a_run_ends_as_without_padding(layers, count, microbatches, sync_bn, multiples):
    layers = ["convolution", *layers]
    options = drawn_run_settings(count, epochs=1, lr=0.003, microbatches=microbatches)
    options["sync_bn"] = sync_bn and "norm" in layers
    padded, plain = (train_padded(layers, each, options) for each in (multiples, ()))
    # A bias before BatchNorm has no gradient but rounding errors: small arrays need an absolute bound.
    for value, expected in zip(padded, plain):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-5 * max(np.abs(expected).max(), 0.01))
