"""A training that is looked at: it is the same training, and it ends when it has shown enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import device_spec

from gluonlab import TrainConfig, train
from gluonlab.study.short_training import AccuracyProbe, log_spaced_steps, train_with_probe
from gluonlab.training.reporter import Reporter

CONFIG = TrainConfig(model="mlp", global_batch_size=128, optimizer="sgd", lr=0.2, epochs=2)
PER_EPOCH = math.ceil(1437 / 128)


def test_looks_at_the_end_of_epochs_see_what_the_run_itself_sees(tmp_path):
    """The undisturbed run is the reference: looking in between changes no bit."""
    config = CONFIG.replace(devices=device_spec(2), out=str(tmp_path / "run"))
    history = train(config, reporter=Reporter()).history
    ends = [PER_EPOCH * epoch for epoch in (1, 2)]
    found = train_with_probe(CONFIG.replace(devices=device_spec(2)), AccuracyProbe([3, 7, *ends], target=2.0))
    seen = {steps: test for steps, _, test, _ in found["looks"]}
    assert [seen[steps] for steps in ends] == [epoch.val_accuracy for epoch in history]
    assert found["reached"] is None and not found["diverged"]
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_it_ends_at_the_first_look_that_has_the_target_or_after_the_thorough_ones():
    every = train_with_probe(CONFIG, AccuracyProbe(range(1, 17), target=2.0))["looks"]
    first = next(steps for steps, _, test, _ in every if test >= 0.5)
    found = train_with_probe(CONFIG, AccuracyProbe(range(1, 17), target=0.5))
    assert found["reached"] == first == found["looks"][-1][0]
    assert [look[2] for look in found["looks"]] == [look[2] for look in every[:first]]
    later = train_with_probe(CONFIG, AccuracyProbe(range(1, 17), target=0.5, train_eval_steps=[2, first + 3]))
    assert later["reached"] == first and later["looks"][-1][0] == first + 3
    trained = {look[0]: look[3] for look in later["looks"] if look[3] is not None}
    assert set(trained) == {2, first + 3} and 0 < trained[2] < trained[first + 3] < 1


def test_a_training_that_diverges_says_so():
    found = train_with_probe(CONFIG.replace(lr=1e6), AccuracyProbe([40], target=0.9))
    assert found == {"reached": None, "diverged": True, "looks": []}


@given(st.integers(1, 5000), st.floats(1.01, 3))
def test_marks_grow_by_a_factor_up_to_the_last(last, factor):
    marks = log_spaced_steps(last, factor)
    assert marks == sorted(set(marks)) and marks[0] == 1 and marks[-1] == last
    assert all(after <= (before + 0.5) * factor + 1.5 for before, after in zip(marks, marks[1:]))


@pytest.mark.parametrize("thorough", [[], [4]])
def test_a_target_that_is_never_reached_ends_with_the_last_mark(thorough):
    found = train_with_probe(CONFIG, AccuracyProbe([1, 5], target=1.1, train_eval_steps=thorough))
    assert found["looks"][-1][0] == 5 and found["reached"] is None
