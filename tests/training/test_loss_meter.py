"""Losses are read late and completely, and a loss that is not finite names its step."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts

from gluonlab.divergence_checks import LARGEST_LOSS
from gluonlab.errors import DivergedError
from gluonlab.training.loss_meter import AsyncLossMeter


def full_losses(*values):
    """Return one loss on each of the first devices."""
    return [nd.full((1,), value, ctx=ctx) for value, ctx in zip(values, contexts(len(values)))]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), max_size=40), st.integers(0, 40))
def test_every_step_is_reported_once_in_order_and_at_most_8_steps_late(steps, flush_after):
    """Each step: the number of the 3 devices that have a shard, and the images on all devices."""
    meter, known = AsyncLossMeter(contexts(3)), []
    for number, (busy, images) in enumerate(steps, start=1):
        known += meter.append(full_losses(*range(number * 10, number * 10 + busy)), images)
        if number == flush_after:
            known += meter.flush()
        assert len(known) >= number - 8
    known += meter.flush()
    assert [(step.step, step.images) for step in known] == [(n, images) for n, (_, images) in enumerate(steps, 1)]
    for step, (busy, images) in zip(known, steps):
        assert step.loss == pytest.approx(sum(step.step * 10 + device for device in range(busy)) / images)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("first", [1, 4, 5, 11])
def test_a_loss_that_is_not_finite_stops_within_8_steps_and_names_its_step(bad, first):
    meter = AsyncLossMeter(contexts(2))
    message = "at step 1, before any update: look for" if first == 1 else rf"at step {first}\b.*--lr"
    with pytest.raises(DivergedError, match=message):
        for number in range(1, first + 9):
            meter.append(full_losses(1.0, bad if number >= first else 1.0), 4)
    assert meter.step <= first + 8


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([1.0, math.inf, math.nan]), max_size=30))
def test_steps_with_overflow_are_left_out_if_losses_may_overflow(losses):
    meter = AsyncLossMeter(contexts(2), may_overflow=True)
    known = [step for loss in losses for step in meter.append(full_losses(1.0, loss), 2)] + meter.flush()
    assert meter.step == len(losses)
    expected = [(number, 1.0) for number, loss in enumerate(losses, start=1) if loss == 1.0]
    assert [(step.step, step.loss) for step in known] == expected


def test_losses_are_copied_before_the_arrays_are_overwritten():
    meter, loss, known = AsyncLossMeter(contexts(1)), nd.zeros((1,)), []
    for number in range(10):
        loss[:] = number
        known += meter.append([loss], 1)
    assert [step.loss for step in known + meter.flush()] == [*range(10)]


def test_a_device_without_a_shard_adds_none_of_its_earlier_losses():
    meter, known = AsyncLossMeter(contexts(3)), []
    for busy in [3] * 8 + [1] * 8 + [2] * 8:
        known += meter.append(full_losses(*[1, 10, 100][:busy]), 1)
    assert [step.loss for step in known + meter.flush()] == [111] * 8 + [1] * 8 + [11] * 8


@pytest.mark.parametrize(
    ("losses", "images", "mean"),
    [([LARGEST_LOSS / 2], 1, LARGEST_LOSS / 2), ([2.0**24, 1], 1024, (2.0**24 + 1) / 1024)],
    ids=["large, but can recover", "added in float64"],
)
@pytest.mark.parametrize("may_overflow", [False, True])
def test_large_losses_are_exact(losses, images, mean, may_overflow):
    meter = AsyncLossMeter(contexts(len(losses)), may_overflow)
    meter.append(full_losses(*losses), images)
    assert [step.loss for step in meter.flush()] == [mean]
