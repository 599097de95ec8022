"""gluonlab study learning-rate: its trainings, and its report."""

import json
import xml.etree.ElementTree as ElementTree
from statistics import median

import pytest
from support.devices import device_spec, runs_on_gpus
from support.studies import begin_study

from gluonlab import TrainConfig, train
from gluonlab.study import learning_rate_scaling
from gluonlab.study.learning_rate_scaling import (
    LINEAR,
    SAME,
    SCALING_RULES,
    WARM_UP,
    LearningRateOptions,
    analyze_measurements,
    build_report,
    load_options,
    measure_final_accuracy,
    parse_options,
)
from gluonlab.training.reporter import Reporter

OPTIONS = LearningRateOptions(devices=[1, 2], batch_size=64, rates=[0.01, 0.02, 0.04], epochs=2, seeds=3)
pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine")


@pytest.mark.parametrize("way", SCALING_RULES)
def test_a_measurement_is_the_accuracy_of_such_a_run(way, tmp_path):
    """The reference: the same training by the command's own road, written down to its end."""
    point = {"way": way, "devices": 2, "rate": 0.02}
    config = TrainConfig(
        devices=None if runs_on_gpus() else device_spec(2), gpus=2 if runs_on_gpus() else None,
        model="mlp",
        batch_size=64, epochs=2, optimizer="sgd", momentum=0.9, seed=1, out=str(tmp_path / "run"),
        lr=0.02 if way == SAME else 0.04, warmup_epochs=0.0 if way in (SAME, LINEAR) else 1.0,
        momentum_rule="mxnet" if way == "uncorrected" else "corrected",
    )  # fmt: skip
    run = train(config, reporter=Reporter())
    assert measure_final_accuracy(OPTIONS, point, 1) == {"right": run.val_accuracy, "diverged": False}


def make_measurements(shares):
    """Measurements in which (way, devices, rate) got these shares right, by seed."""
    return [
        [{"right": share} for share in shares(point["way"], point["devices"], point["rate"])]
        for point in OPTIONS.list_trainings()
    ]


def test_the_best_and_the_largest_rates_and_the_gain_of_pairs_are_found():
    def shares(way, devices, rate):
        seeds = [0.0, 0.01, 0.02]  # what a seed brings, whatever the way
        base = {0.01: 0.80, 0.02: 0.95, 0.04: 0.94}[rate]
        gain = 0.03 if way == LINEAR else 0.0
        return [base + gain + seed - (0.5 if (way, rate) == (WARM_UP, 0.04) else 0) for seed in seeds]

    found = analyze_measurements(OPTIONS, make_measurements(shares))
    by = {(curve.way, curve.devices): curve for curve in found.curves}
    assert (LINEAR, 1) not in by and len(by) == 7
    assert (by[SAME, 2].best, by[SAME, 2].largest) == (0.02, 0.04)
    assert (by[WARM_UP, 2].best, by[WARM_UP, 2].largest) == (0.02, 0.02)
    assert [each.value for each in by[SAME, 1].shares] == pytest.approx([0.81, 0.96, 0.95])
    linear = found.effects[0]
    assert (linear.of, linear.beside, linear.devices, linear.rate) == (LINEAR, SAME, 2, 0.02)
    assert linear.gain.value == pytest.approx(0.03)
    assert linear.gain.ends == pytest.approx((0.03, 0.03))  # what a seed brings cancels


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_asked_for_is_what_a_resumed_study_reads(quick):
    """Each rate is twice the one before."""
    options = parse_options(quick, device_counts="4,1", batch_size="8")
    assert load_options(json.loads(json.dumps(options._asdict()))) == options
    assert (options.devices, options.batch_size) == ([1, 4], 8)
    assert options.rates[1:] == [2 * rate for rate in options.rates[:-1]]
    assert set(options.rates) <= set(parse_options(False).rates) and options.seeds <= parse_options(False).seeds
    assert min(options.rates) < 0.01 < max(options.rates) < 1


def test_the_figure_of_a_way_has_the_shares_of_every_number_of_devices():
    """For one device the linear rule changes nothing: its curve is that of the same rate."""

    def shares(way, devices, rate):
        return [devices / 10 + rate + (way == WARM_UP) / 20] * 3

    found = analyze_measurements(OPTIONS, make_measurements(shares))
    report = build_report(found, OPTIONS, "en")
    for way, chart in report.charts.items():
        assert [curve.points for curve in chart.curves] == [
            [(rate, pytest.approx(100 * shares(way, devices, rate)[0])) for rate in OPTIONS.rates]
            for devices in OPTIONS.devices
        ]
    assert list(report.charts) == list(SCALING_RULES)


def test_a_training_that_diverges_gets_nothing_right():
    found = measure_final_accuracy(OPTIONS, {"way": SAME, "devices": 1, "rate": 1e6}, 0)
    assert found == {"right": 0.0, "diverged": True}


def test_the_command_writes_figures_and_a_page_in_both_languages(study, tmp_path, monkeypatch):
    monkeypatch.setattr(
        learning_rate_scaling,
        "measure_final_accuracy",
        lambda options, point, seed: {"right": 0.5 + point["rate"] + seed / 100},
    )
    folder = tmp_path / "study"
    begin_study("learning-rate", OPTIONS, folder)
    status, out, _ = study("learning-rate", "--resume", str(folder), "--json")
    assert status == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["curves"] == json.loads(out)["curves"]
    own = [0.5 + 0.04 + seed / 100 for seed in range(3)]
    assert result["curves"][0]["shares"][2]["value"] == pytest.approx(median(own))
    assert {path.name for path in folder.iterdir()} == {
        "study.json", "measurements.jsonl", "result.json", "study.html",
        *(f"{way}.svg" for way in SCALING_RULES),
    }  # fmt: skip
    for way in SCALING_RULES:
        ElementTree.parse(folder / f"{way}.svg")
    english = (folder / "study.html").read_text(encoding="utf-8")
    status, out, _ = study("learning-rate", "--resume", str(folder), "--language", "ja")
    japanese = (folder / "study.html").read_text(encoding="utf-8")
    assert status == 0 and "線形則" in japanese and "The linear rule" in english
    assert english.count("<figure>") == japanese.count("<figure>") == 4
