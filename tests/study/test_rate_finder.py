"""--find-lr: a training like any other but for its rate, a rule on its losses, a picture."""

import json
import re

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import named
from support.drawn_charts import curve, tree_of

from gluonlab import TrainConfig, train
from gluonlab.errors import ConfigError, RunError
from gluonlab.run import main
from gluonlab.study.rate_finder import HIGHEST, LOWEST, find_rate, smoothed, suggested, write
from gluonlab.training.reporter import Reporter

CONFIG = TrainConfig(model="mlp", global_batch_size=128, optimizer="sgd")


@pytest.fixture(scope="module")
def found():
    return find_rate(CONFIG.replace(devices=named(2)), 60)


def test_the_rate_rises_by_one_factor_and_its_first_losses_are_those_of_any_run(found, tmp_path):
    """At the lowest rates nothing moves: a run whose rate is as low has the same losses."""
    factors = np.divide(found.rates[1:], found.rates[:-1])
    assert found.rates[0] == LOWEST and factors == pytest.approx((HIGHEST / LOWEST) ** (1 / 59))
    out = tmp_path / "run"
    config = CONFIG.replace(devices=named(2), lr=LOWEST, epochs=1, out=str(out))
    train(config, reporter=Reporter())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert found.losses[:8] == pytest.approx(losses[:8], rel=1e-4)


def test_its_losses_are_those_of_a_run_that_follows_the_same_rates(found, monkeypatch, tmp_path):
    """The reference is a usual run, whose schedule is replaced by the rates that were reported."""
    from gluonlab.update import rates

    monkeypatch.setitem(
        rates.LR_SCHEDULES,
        "constant",
        lambda own, step: found.rates[min(step, len(found.rates)) - 1],
    )
    config = CONFIG.replace(devices=named(2), lr=1.0, epochs=5, out=str(tmp_path / "run"))
    train(config, reporter=Reporter())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert losses[: len(found.losses)] == found.losses and len(found.losses) > 40  # bit for bit


def test_the_suggestion_trains(found, tmp_path):
    config = CONFIG.replace(lr=found.suggestion, epochs=10, out=str(tmp_path / "run"))
    assert train(config, reporter=Reporter()).accuracy > 0.9
    assert found.suggestion < found.best < HIGHEST


def test_a_rate_that_is_scaled_is_suggested_as_it_is_given():
    """--scale-lr multiplies what --lr gives by 4: the same steps, a rate 4 times as small."""
    scaled = CONFIG.replace(global_batch_size=None, batch_size=32, scale_lr=True)
    four = find_rate(scaled.replace(devices=named(4)), 40)
    assert four.batch == 128 and four.rates[0] == LOWEST
    assert four.rates[-1] <= HIGHEST


@given(st.integers(12, 68), st.floats(0.5, 3))
def test_the_rule_is_a_tenth_of_the_rate_of_the_smallest_loss(lowest, depth):
    rates = [10 ** (power / 10) for power in range(-60, 11)]
    losses = [5 - depth + depth * abs(place - lowest) / lowest for place in range(71)]
    assert suggested(rates, losses) == pytest.approx(rates[lowest] / 10)


def test_losses_that_do_not_fall_suggest_nothing():
    rates = [10 ** (power / 10) for power in range(-60, 11)]
    assert suggested(rates, [2.3] * 71) is None
    assert suggested(rates, [2 + place / 10 for place in range(71)]) is None
    assert suggested(rates, [2.3, 2.25] * 35) is None
    assert suggested([1.0], [1.0]) is None


@given(st.floats(0.01, 100), st.integers(1, 40))
def test_smoothing_keeps_a_constant(loss, count):
    assert smoothed([loss] * count) == pytest.approx([loss] * count)


def test_smoothing_is_that_of_a_weighted_mean():
    losses = [3.0, 1.0, 2.0, 5.0]
    weights = [0.9**age for age in range(4)][::-1]
    assert smoothed(losses)[-1] == pytest.approx(np.average(losses, weights=weights))


def test_picture_and_numbers_are_written_together(found, tmp_path):
    path = write(found, str(tmp_path / "a"))
    assert {each.name for each in path.iterdir()} == {"find-lr.svg", "find-lr.json"}
    tree = tree_of((path / "find-lr.svg").read_text(encoding="utf-8"))
    highest = 2 * found.smoothed[0]  # where what is above is drawn
    drawn = [(rate, min(loss, highest)) for rate, loss in zip(found.rates, found.losses)]
    assert curve(tree, "curve-2", log_x=True) == [pytest.approx(point, rel=1e-3) for point in drawn]
    assert json.loads((path / "find-lr.json").read_text())["suggestion"] == found.suggestion


def test_the_command_says_a_rate_and_leaves_only_its_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "mlp", "--devices", named(1), "--find-lr", "30", "--out", "found"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    out = capsys.readouterr().out
    assert ended.value.code == 0 and out.startswith("--lr ")
    assert max(map(len, out.splitlines())) <= 80
    assert [path.name for path in tmp_path.iterdir()] == ["found"]


def test_a_training_that_learns_nothing_is_one_line(monkeypatch):
    with pytest.raises(ConfigError, match=r"leave --lr 0\.1 out"):
        find_rate(CONFIG.replace(lr=0.1), 30)
    monkeypatch.setattr("gluonlab.study.rate_finder.suggested", lambda rates, losses: None)
    with pytest.raises(RunError, match="did not fall at any rate"):
        find_rate(CONFIG, 20)
    mx.nd.waitall()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"epochs": 3}, "raises the rate in each of 30 steps, whatever else: leave --epochs 3 out"),
        ({"lr_schedule": "cosine"}, "leave --lr-schedule cosine out"),
        ({"warmup_epochs": 0.5}, "leave --warmup-epochs 0.5 out"),
        ({"lr_decay": 0.5}, "leave --lr-decay 0.5 out"),
        ({"lr_decay_epochs": "1,2"}, "leave --lr-decay-epochs 1,2 out"),
        ({"final_lr": 0.01}, "leave --final-lr 0.01 out"),
        ({"export": True}, "nothing of the training: leave --export out"),
        ({"checkpoint_every": "5 steps"}, "leave --checkpoint-every 5 steps out"),
    ],
)
def test_what_changes_nothing_of_a_range_test_is_refused(setting, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        find_rate(CONFIG.replace(**setting), 30)
