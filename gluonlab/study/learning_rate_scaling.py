"""``study learning-rate``: accuracy against learning rate, for several numbers of devices.

Each device gets the same number of images, so the batch of k devices is k times as large. The study
compares four rules: the same rate for any number of devices, a rate that is k times as large
(linear rule), the linear rule with warm-up, and the linear rule with warm-up but without momentum
correction.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.config.option_checks import whole_number_check
from gluonlab.drawing.svg_chart import CURVE_KINDS, Axis, Chart, Curve, format_number
from gluonlab.study.study_report import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    ascending_list_check,
    check_options,
    integer_check,
    median_estimate,
    paired_difference,
    parse_integer_list,
    positive_check,
    read_translations,
    to_plain_values,
)
from gluonlab.study.sweep import MeasurementStore, Sweep

NAME = "learning-rate"
DATASET, MODEL, MOMENTUM = "digits", "mlp", 0.9
SAME, LINEAR, WARM_UP, UNCORRECTED = "same", "linear", "warm-up", "uncorrected"
SCALING_RULES: Dict[str, Dict[str, Any]] = {  # name -> settings of a TrainConfig
    SAME: {},
    LINEAR: {"scale_lr": True},
    WARM_UP: {"scale_lr": True, "warmup_epochs": 1.0},
    UNCORRECTED: {"scale_lr": True, "warmup_epochs": 1.0, "momentum_rule": "mxnet"},
}
MAX_DEVICES = 64


class LearningRateOptions(NamedTuple):
    """Options of the study: numbers of devices, images per device, rates, epochs and seeds."""

    devices: List[int]
    batch_size: int
    rates: List[float]
    epochs: int
    seeds: int

    def list_trainings(self) -> List[Dict[str, Any]]:
        """Return the settings of all training runs. The linear rule is not used with one device."""
        return [
            {"way": rule, "devices": count, "rate": rate}
            for count in self.devices
            for rule in SCALING_RULES
            for rate in self.rates
            if count > 1 or rule != LINEAR
        ]


def parse_options(
    quick: bool,
    device_counts: Optional[str] = None,
    batch_size: Optional[str] = None,
    epochs: Optional[str] = None,
    seeds: Optional[str] = None,
) -> LearningRateOptions:
    """Convert the options of the command from text. Raises ConfigError."""
    counts = (
        [1, 2, 4]
        if device_counts is None
        else parse_integer_list("--device-counts", device_counts, MAX_DEVICES, "numbers of devices", "1,2,4")
    )
    powers = range(-8, -2) if quick else range(-10, 0)
    return LearningRateOptions(
        counts,
        32 if batch_size is None else whole_number_check(1)("--batch-size", batch_size),
        [2.0**power for power in powers],
        3 if epochs is None else whole_number_check(2, 1000)("--epochs", epochs),
        (2 if quick else 5) if seeds is None else whole_number_check(1, 1000)("--seeds", seeds),
    )


def load_options(options: Mapping[str, Any]) -> LearningRateOptions:
    """Convert the options in a study's folder. Raises ValueError for invalid options."""
    checks = {
        "devices": ascending_list_check(integer_check(1, MAX_DEVICES), 2),
        "batch_size": integer_check(1),
        "rates": ascending_list_check(positive_check()),
        "epochs": integer_check(2, 1000),
        "seeds": integer_check(1, 1000),
    }
    check_options(options, checks)
    return LearningRateOptions(**options)


# --- measurements

ACCURACY_TOLERANCE = 0.02  # accuracies count as good if they are this close to the best

Point = Tuple[str, int, float]  # (scaling rule, devices, rate)


class AccuracyCurve(NamedTuple):
    """The accuracy against the rate, for a scaling rule (``way``) and a number of devices.

    - ``shares``: validation accuracies, from 0 to 1, in the order of the rates.
    - ``best``: the rate with the highest accuracy.
    - ``largest``: the largest rate whose accuracy is within ACCURACY_TOLERANCE of the highest
      accuracy.
    """

    way: str
    devices: int
    shares: List[IntervalEstimate]
    best: float
    largest: float


class Effect(NamedTuple):
    """The accuracy of the rule ``of`` minus the accuracy of the rule ``beside``, at one rate.

    The difference is computed for each seed.
    """

    of: str
    beside: str
    devices: int
    rate: float
    gain: IntervalEstimate


class RateFindings(NamedTuple):
    """The findings of the study."""

    rates: List[float]
    curves: List[AccuracyCurve]
    effects: List[Effect]


def measure(options: LearningRateOptions, store: MeasurementStore) -> Findings:
    """Train with all scaling rules, device counts, rates and seeds, and return the findings."""
    # MXNet is loaded here, not for --help
    from gluonlab.study.short_training import warn_cpu_fallback

    warn_cpu_fallback()
    with Sweep(store, lambda settings, seed: measure_final_accuracy(options, settings, seed)) as sweep:
        findings = analyze_measurements(options, sweep.run(options.list_trainings(), range(options.seeds), NAME))
    return Findings(to_plain_values(findings), lambda language: build_report(findings, options, language))


def measure_final_accuracy(options: LearningRateOptions, settings: Mapping[str, Any], seed: int) -> Dict[str, Any]:
    """Return the final validation accuracy of a training run, or 0 if the run diverges."""
    from gluonlab.config import TrainConfig
    from gluonlab.study.short_training import AccuracyProbe, device_settings, read_dataset, train_with_probe

    config = TrainConfig(
        dataset=DATASET, model=MODEL, recipe="quick",
        batch_size=options.batch_size, epochs=options.epochs, optimizer="sgd",
        momentum=MOMENTUM, lr=settings["rate"], seed=seed, **SCALING_RULES[settings["way"]],
        **device_settings(settings["devices"]),
    )  # fmt: skip
    images = len(read_dataset(DATASET).train)
    steps = math.ceil(images / (options.batch_size * settings["devices"]))
    measured = train_with_probe(config, AccuracyProbe([steps * options.epochs], target=math.inf))
    accuracy = measured["looks"][-1][2] if measured["looks"] else 0.0
    return {"right": accuracy, "diverged": measured["diverged"]}


def analyze_measurements(
    options: LearningRateOptions, measurements: Sequence[Sequence[Mapping[str, Any]]]
) -> RateFindings:
    """Compute an accuracy curve for each rule and number of devices, and compare the rules.

    ``measurements``: the results of all seeds for each item of ``options.list_trainings()``.
    """
    accuracies: Dict[Point, List[float]] = {
        (point["way"], point["devices"], point["rate"]): [trial["right"] for trial in trials]
        for point, trials in zip(options.list_trainings(), measurements)
    }
    curves = [
        _accuracy_curve(rule, count, [accuracies[rule, count, rate] for rate in options.rates], options.rates)
        for rule in SCALING_RULES
        for count in options.devices
        if (rule, count, options.rates[0]) in accuracies
    ]
    return RateFindings(options.rates, curves, _compare_rules(accuracies, curves))


def _accuracy_curve(rule: str, count: int, accuracies: Sequence[List[float]], rates: Sequence[float]) -> AccuracyCurve:
    """Return the curve of a rule with ``count`` devices.

    ``accuracies``: the accuracies, by rate and then by seed.
    """
    medians = [median(seeds) for seeds in accuracies]
    best = max(range(len(rates)), key=lambda index: (medians[index], -index))
    good_rates = [rate for rate, seeds in zip(rates, medians) if seeds >= medians[best] - ACCURACY_TOLERANCE]
    estimates = [estimate for estimate in map(median_estimate, accuracies) if estimate is not None]
    return AccuracyCurve(rule, count, estimates, rates[best], max(good_rates))


def _compare_rules(accuracies: Mapping[Point, List[float]], curves: Sequence[AccuracyCurve]) -> List[Effect]:
    """Return how much the linear rule and warm-up change the accuracy on the most devices.

    The linear rule is compared at the best rate with the fewest devices. Warm-up is compared at the
    largest good rate of the rule without warm-up.
    """
    curve_of = {(curve.way, curve.devices): curve for curve in curves}
    curve_of_fewest, most_devices = curve_of[SAME, curves[0].devices], curves[-1].devices
    comparisons = [(LINEAR, SAME, curve_of_fewest.best)]
    for rule, baseline in ((WARM_UP, LINEAR), (WARM_UP, UNCORRECTED)):
        if (baseline, most_devices) in curve_of:
            comparisons.append((rule, baseline, curve_of[baseline, most_devices].largest))

    def gain(rule: str, baseline: str, rate: float) -> IntervalEstimate:
        return paired_difference(accuracies[rule, most_devices, rate], accuracies[baseline, most_devices, rate])

    return [
        Effect(rule, baseline, most_devices, rate, gain(rule, baseline, rate)) for rule, baseline, rate in comparisons
    ]


# --- the report


def build_report(findings: RateFindings, options: LearningRateOptions, language: str) -> StudyReport:
    """Return the study's report."""
    texts = read_translations(NAME, language)
    charts = {rule: _accuracy_chart(rule, findings, options, texts) for rule in SCALING_RULES}
    sentences = [_best_rates_sentence(rule, findings, texts) for rule in SCALING_RULES]
    sentences += [_effect_sentence(effect, texts) for effect in findings.effects]
    method = texts["method"].format(
        model=MODEL.upper(), batch=options.batch_size, epochs=options.epochs, momentum=MOMENTUM, seeds=options.seeds
    )
    setting_names = texts["settings"]
    settings = {
        setting_names["devices"]: ", ".join(map(str, options.devices)),
        setting_names["seeds"]: str(options.seeds),
        setting_names["epochs"]: str(options.epochs),
        setting_names["machine"]: cpu_model(),
    }
    return StudyReport(
        texts["title"], sentences, charts, [_best_rates_table(findings, options, texts)], [method], settings, language
    )


def _curves_of_rule(rule: str, findings: RateFindings) -> List[AccuracyCurve]:
    """Return a rule's curves. For the linear rule, add the curve of one device without a rule."""
    return [
        curve
        for curve in findings.curves
        if curve.way == rule or (rule == LINEAR and (curve.way, curve.devices) == (SAME, 1))
    ]


def _accuracy_chart(rule: str, findings: RateFindings, options: LearningRateOptions, texts: Dict[str, Any]) -> Chart:
    """Return a chart of accuracy against the rate, with a curve for each number of devices."""
    curves = []
    for curve in _curves_of_rule(rule, findings):
        accuracies = [accuracy.scale(100) for accuracy in curve.shares]
        points = [(rate, accuracy.value) for rate, accuracy in zip(findings.rates, accuracies)]
        name = texts["devices"]["one" if curve.devices == 1 else "several"].format(
            count=curve.devices, batch=format_number(curve.devices * options.batch_size)
        )
        kind = options.devices.index(curve.devices) % CURVE_KINDS
        curves.append(Curve(name, points, kind, [accuracy.ends for accuracy in accuracies]))
    return Chart(
        texts["chart"].format(way=texts["ways"][rule]),
        Axis(texts["x"], log=True, ticks=findings.rates),
        Axis(texts["y"], lowest=0, highest=100),
        curves,
        notes=[_best_rates_sentence(rule, findings, texts)],
    )


def _device_count_text(count: int, texts: Dict[str, Any]) -> str:
    return str(texts["device"] if count == 1 else texts["several"].format(count=count))


def _best_rates_sentence(rule: str, findings: RateFindings, texts: Dict[str, Any]) -> str:
    """Return a sentence with the best learning rate of a rule for each number of devices."""
    rates = texts["and"].join(
        texts["rate"].format(rate=format_number(curve.best), devices=_device_count_text(curve.devices, texts))
        for curve in _curves_of_rule(rule, findings)
    )
    return str(texts["best"].format(way=texts["ways"][rule], rates=rates))


def _effect_sentence(effect: Effect, texts: Dict[str, Any]) -> str:
    """Return a sentence about the gain of one rule over another, in percentage points."""
    gain = effect.gain.scale(100)
    return str(texts["effect"].format(
        devices=_device_count_text(effect.devices, texts), rate=format_number(effect.rate),
        of=texts["ways"][effect.of], beside=texts["ways"][effect.beside],
        gain=gain.value, ends=gain.format_interval(texts, float),
    ))  # fmt: skip


def _best_rates_table(findings: RateFindings, options: LearningRateOptions, texts: Dict[str, Any]) -> Table:
    """Return a table with the best learning rate of each curve, and its accuracy."""
    rows = []
    for curve in findings.curves:
        best = curve.shares[findings.rates.index(curve.best)].scale(100)
        rows.append([
            texts["ways"][curve.way],
            str(curve.devices),
            format_number(curve.devices * options.batch_size),
            format_number(curve.best),
            f"{best.value:.1f} %",
            best.format_range("{:.1f}".format),
            format_number(curve.largest),
        ])  # fmt: skip
    return Table(texts["title"], texts["heads"], rows, texts["note"])


STUDY = Study(NAME, parse_options, load_options, measure)
