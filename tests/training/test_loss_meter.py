"""Losses are read late, completely, and a loss that is no number names its step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts

from gluonlab.divergence_checks import LARGEST_LOSS
from gluonlab.errors import DivergedError
from gluonlab.training.loss_meter import AsyncLossMeter


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), max_size=40), st.integers(0, 40))
def test_every_step_is_reported_once_in_order_and_at_most_8_steps_late(steps, flush_after):
    """Each step: how many of the 3 devices had a shard, and the images in all."""
    log, known = AsyncLossMeter(contexts(3)), []
    for number, (busy, images) in enumerate(steps, start=1):
        known += log.append(
            [nd.full((1,), number * 10 + device, ctx=ctx) for device, ctx in enumerate(contexts(busy))], images
        )
        if number == flush_after:
            known += log.flush()
        assert len(known) >= number - 8
    known += log.flush()
    assert [step.step for step in known] == list(range(1, len(steps) + 1))
    for step, (busy, images) in zip(known, steps):
        assert step.images == images
        assert step.loss == pytest.approx(sum(step.step * 10 + device for device in range(busy)) / images)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("begins", [1, 4, 5, 11])
def test_a_loss_that_is_not_finite_stops_within_8_steps_and_names_its_step(bad, begins):
    log = AsyncLossMeter(contexts(2))
    said = "at step 1, before any update: look for" if begins == 1 else rf"at step {begins}\b.*--lr"
    with pytest.raises(DivergedError, match=said):
        for number in range(1, begins + 9):
            healthy = nd.ones((1,), ctx=contexts(2)[0])
            log.append([healthy, nd.full((1,), bad if number >= begins else 1.0, ctx=contexts(2)[1])], 4)
    assert log.step <= begins + 8


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([1.0, math.inf, math.nan]), max_size=30))
def test_where_losses_may_overflow_their_steps_are_left_out(losses):
    log, known = AsyncLossMeter(contexts(2), may_overflow=True), []
    for loss in losses:
        known += log.append([nd.ones((1,), ctx=contexts(2)[0]), nd.full((1,), loss, ctx=contexts(2)[1])], 2)
    known += log.flush()
    assert log.step == len(losses)
    assert [step.step for step in known] == [number for number, loss in enumerate(losses, start=1) if loss == 1.0]
    assert {step.loss for step in known} <= {1.0}


def test_arrays_that_are_overwritten_afterwards_are_noted_as_they_were():
    log, loss, known = AsyncLossMeter(contexts(1)), nd.zeros((1,)), []
    for number in range(10):
        loss[:] = number
        known += log.append([loss], 1)
    assert np.array_equal([step.loss for step in known + log.flush()], range(10))


def test_a_device_without_a_shard_adds_nothing_of_what_it_had_before():
    """In every place of both blocks, each of which has held another number there."""
    log, known = AsyncLossMeter(contexts(3)), []
    for busy in [3] * 8 + [1] * 8 + [2] * 8:
        known += log.append([nd.full((1,), 10.0**device, ctx=ctx) for device, ctx in enumerate(contexts(busy))], 1)
    assert [step.loss for step in known + log.flush()] == [111] * 8 + [1] * 8 + [11] * 8


@pytest.mark.parametrize("may_overflow", [False, True])
def test_a_large_loss_that_can_recover_does_not_stop_the_run(may_overflow):
    log = AsyncLossMeter(contexts(1), may_overflow)
    log.append([nd.array([LARGEST_LOSS / 2])], 1)
    assert [step.loss for step in log.flush()] == [LARGEST_LOSS / 2]


def test_the_devices_sums_are_added_in_more_digits_than_they_have():
    """2**24 + 1 is no float32."""
    log = AsyncLossMeter(contexts(2))
    log.append([nd.full((1,), 2.0**24, ctx=contexts(2)[0]), nd.ones((1,), ctx=contexts(2)[1])], 1024)
    assert [step.loss for step in log.flush()] == [(2.0**24 + 1) / 1024]
