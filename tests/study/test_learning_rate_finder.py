"""gluonlab find-lr: a training whose rate rises, a rule for its losses, a picture."""

import json
import re

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import device_spec
from support.drawn_charts import curve_points, parse_svg

from gluonlab import TrainConfig, train
from gluonlab.errors import ConfigError, RunError
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Step
from gluonlab.study.learning_rate_finder import (
    HIGHEST,
    LOWEST,
    find_learning_rate,
    smooth_losses,
    suggest_rate,
    write_finder_result,
)
from gluonlab.training.learning_rate_schedule import LR_SCHEDULES
from gluonlab.training.reporter import Reporter

CONFIG = TrainConfig(model="mlp", global_batch_size=128, optimizer="sgd")


@pytest.fixture(scope="module")
def found():
    return find_learning_rate(CONFIG.replace(devices=device_spec(2)), 60)


def step_losses(run):
    return [line.loss for line in read_lines(run) if isinstance(line, Step)]


def test_the_rate_rises_by_one_factor_and_its_first_losses_are_those_of_any_run(found, tmp_path):
    """At the lowest rates nothing moves: a run whose rate is as low has the same losses."""
    factors = np.divide(found.rates[1:], found.rates[:-1])
    assert found.rates[0] == LOWEST and factors == pytest.approx((HIGHEST / LOWEST) ** (1 / 59))
    out = tmp_path / "run"
    config = CONFIG.replace(devices=device_spec(2), lr=LOWEST, epochs=1, out=str(out))
    train(config, reporter=Reporter())
    assert found.losses[:8] == pytest.approx(step_losses(out)[:8], rel=1e-4)


def test_its_losses_are_those_of_a_run_that_follows_the_same_rates(found, monkeypatch, tmp_path):
    """The reference is a usual run, whose schedule is replaced by the rates that were reported."""
    same = lambda own, step: found.rates[min(step, len(found.rates)) - 1]  # noqa: E731
    monkeypatch.setitem(LR_SCHEDULES, "constant", same)
    config = CONFIG.replace(devices=device_spec(2), lr=1.0, epochs=5, out=str(tmp_path / "run"))
    train(config, reporter=Reporter())
    losses = step_losses(tmp_path / "run")
    assert losses[: len(found.losses)] == found.losses and len(found.losses) > 40  # bit for bit


def test_the_suggestion_trains(found, tmp_path):
    config = CONFIG.replace(lr=found.suggestion, epochs=10, out=str(tmp_path / "run"))
    assert train(config, reporter=Reporter()).val_accuracy > 0.9
    assert found.suggestion < found.best_rate < HIGHEST


def test_a_rate_that_is_scaled_is_suggested_as_it_is_given():
    """--scale-lr multiplies what --lr gives by 4: the same steps, a rate 4 times as small."""
    scaled = CONFIG.replace(global_batch_size=None, batch_size=32, scale_lr=True)
    four = find_learning_rate(scaled.replace(devices=device_spec(4)), 40)
    assert four.batch == 128 and four.rates[0] == LOWEST
    assert four.rates[-1] <= HIGHEST


@given(st.integers(12, 68), st.floats(0.5, 3))
def test_the_rule_is_a_tenth_of_the_rate_of_the_smallest_loss(lowest, depth):
    rates = [10 ** (power / 10) for power in range(-60, 11)]
    losses = [5 - depth + depth * abs(place - lowest) / lowest for place in range(71)]
    assert suggest_rate(rates, losses) == pytest.approx(rates[lowest] / 10)


def test_losses_that_do_not_fall_suggest_nothing():
    rates = [10 ** (power / 10) for power in range(-60, 11)]
    assert suggest_rate(rates, [2.3] * 71) is None
    assert suggest_rate(rates, [2 + place / 10 for place in range(71)]) is None
    assert suggest_rate(rates, [2.3, 2.25] * 35) is None
    assert suggest_rate([1.0], [1.0]) is None


def test_smoothing_is_that_of_a_weighted_mean():
    losses = [3.0, 1.0, 2.0, 5.0]
    weights = [0.9**age for age in range(4)][::-1]
    assert smooth_losses(losses)[-1] == pytest.approx(np.average(losses, weights=weights))
    assert smooth_losses([0.3] * 40) == pytest.approx([0.3] * 40)


def test_picture_and_numbers_are_written_together(found, tmp_path):
    path = write_finder_result(found, str(tmp_path / "a"))
    assert {each.name for each in path.iterdir()} == {"find-lr.svg", "find-lr.json"}
    tree = parse_svg((path / "find-lr.svg").read_text(encoding="utf-8"))
    highest = 2 * found.smoothed[0]  # where what is above is drawn
    drawn = [(rate, min(loss, highest)) for rate, loss in zip(found.rates, found.losses)]
    assert curve_points(tree, "curve-2", log_x=True) == [pytest.approx(point, rel=1e-3) for point in drawn]
    assert json.loads((path / "find-lr.json").read_text())["suggestion"] == found.suggestion


def test_the_command_says_a_rate_and_leaves_only_its_folder(run, empty_cwd):
    words = ["find-lr", "--model", "mlp", "--devices", device_spec(1), "--steps", "30", "--out", "found"]
    status, out, _ = run(*words)
    assert status == 0 and out.startswith("--lr ") and max(map(len, out.splitlines())) <= 80
    assert [path.name for path in empty_cwd.iterdir()] == ["found"]


def test_a_training_that_learns_nothing_is_one_line(monkeypatch):
    monkeypatch.setattr("gluonlab.study.learning_rate_finder.suggest_rate", lambda rates, losses: None)
    with pytest.raises(RunError, match="did not decrease at any learning rate"):
        find_learning_rate(CONFIG, 20)
    mx.nd.waitall()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": 0.1}, "omit --lr 0.1"),
        ({"epochs": 3}, "sets the learning rate of each of its 30 steps itself: omit --epochs 3"),
        ({"lr_schedule": "cosine"}, "omit --lr-schedule cosine"),
        ({"warmup_epochs": 0.5}, "omit --warmup-epochs 0.5"),
        ({"lr_decay": 0.5}, "omit --lr-decay 0.5"),
        ({"lr_decay_epochs": "1,2"}, "omit --lr-decay-epochs 1,2"),
        ({"final_lr": 0.01}, "omit --final-lr 0.01"),
        ({"export": "mxnet"}, "saves only its figure and its results: omit --export mxnet"),
        ({"checkpoint_every": "5 steps"}, "omit --checkpoint-every 5 steps"),
    ],
)
def test_settings_without_effect_on_a_range_test_are_refused(setting, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_learning_rate(CONFIG.replace(**setting), 30)
