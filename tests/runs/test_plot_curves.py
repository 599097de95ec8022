"""Positions on the axis of epochs, and growing curves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.runs.plot_curves import MAX_POINTS, CurveDownsampler, epoch_middles, step_positions
from gluonlab.runs.run_schema import Epoch, Step


@given(epochs=st.integers(1, 5), per_epoch=st.integers(1, 20))
def test_an_epochs_mean_lies_among_its_steps(epochs, per_epoch):
    steps = [Step(n, 1.0, 0.1) for n in range(1, epochs * per_epoch + 1)]
    ended = [Epoch(n, n * per_epoch, 10, 1.0, 1.0, 0.5) for n in range(1, epochs + 1)]
    at = np.array(step_positions(steps, ended)).reshape(epochs, per_epoch)
    half_a_step = 0.5 / per_epoch
    assert at.mean(axis=1) - half_a_step == pytest.approx(epoch_middles(ended))


@given(count=st.integers(0, 9 * MAX_POINTS), seed=st.integers(0, 9))
def test_a_growing_curve_has_means_over_equal_stretches(count, seed):
    ys, curve, size = np.random.RandomState(seed).normal(size=count), CurveDownsampler(), 1
    for x, y in enumerate(ys):
        curve.add(x, y)
    while count // size >= 2 * MAX_POINTS:
        size *= 2
    whole = count // size * size
    assert len(curve.curve[0]) == count // size < 2 * MAX_POINTS
    for points, values in zip(curve.curve, (np.arange(count), ys)):
        assert points == pytest.approx(values[:whole].reshape(-1, size).mean(axis=1))
