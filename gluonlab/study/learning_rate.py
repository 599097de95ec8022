"""``study learning-rate``: accuracy against the rate, for several numbers of devices.

Each device has as many images, so that k devices make batches k times as large. The rate stays, or
follows the linear rule, with and without warm-up and momentum correction.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.config.option_types import whole_number_check
from gluonlab.drawing.svg_chart import KINDS, Axis, Chart, Curve, number
from gluonlab.errors import ConfigError
from gluonlab.study.study import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    as_plain,
    ascending,
    check_options,
    difference,
    middle,
    positive,
    read_words,
    whole_number,
)
from gluonlab.study.sweep import InMemory, Sweep

NAME = "learning-rate"
DATASET, MODEL, MOMENTUM = "digits", "mlp", 0.9
SAME, LINEAR, WARM_UP, UNCORRECTED = "same", "linear", "warm-up", "uncorrected"
WAYS: Dict[str, Dict[str, Any]] = {  # the settings of a TrainConfig
    SAME: {},
    LINEAR: {"scale_lr": True},
    WARM_UP: {"scale_lr": True, "warmup_epochs": 1.0},
    UNCORRECTED: {"scale_lr": True, "warmup_epochs": 1.0, "momentum_rule": "mxnet"},
}
MOST_DEVICES = 64


class LearningRateOptions(NamedTuple):
    """What was asked: numbers of devices, images of each, rates, epochs and seeds."""

    devices: List[int]
    batch_size: int
    rates: List[float]
    epochs: int
    seeds: int

    def points(self) -> List[Dict[str, Any]]:
        """All settings. For one device, whose rate nothing scales, the linear rule is none."""
        return [
            {"way": way, "devices": count, "rate": rate}
            for count in self.devices
            for way in WAYS
            for rate in self.rates
            if count > 1 or way != LINEAR
        ]


def choose(
    quick: bool,
    devices: Optional[str] = None,
    batch_size: Optional[str] = None,
    epochs: Optional[str] = None,
    seeds: Optional[str] = None,
) -> LearningRateOptions:
    """The options of a command, as text. Raises ConfigError."""
    counts = [1, 2, 4] if devices is None else _counts(devices)
    powers = range(-8, -2, 1) if quick else range(-10, 0)
    return LearningRateOptions(
        counts,
        32 if batch_size is None else whole_number_check(1)("--batch-size", batch_size),
        [2.0**power for power in powers],
        3 if epochs is None else whole_number_check(2, 1000)("--epochs", epochs),
        (2 if quick else 5) if seeds is None else whole_number_check(1, 1000)("--seeds", seeds),
    )


def _counts(text: str) -> List[int]:
    number = whole_number_check(1, MOST_DEVICES)
    counts = sorted({number("--devices", part.strip()) for part in text.split(",")})
    if len(counts) < 2:
        raise ConfigError(f"--devices {text}: give two numbers of devices or more, such as 1,2,4")
    return counts


def read(options: Mapping[str, Any]) -> LearningRateOptions:
    """The options as a folder has them. Raises ValueError for anything else."""
    fits = {
        "devices": ascending(whole_number(1, MOST_DEVICES), 2), "batch_size": whole_number(1),
        "rates": ascending(positive()), "epochs": whole_number(2, 1000),
        "seeds": whole_number(1, 1000),
    }  # fmt: skip
    check_options(options, fits)
    return LearningRateOptions(**options)


# --- measurements

NEAR = 0.02  # of the best accuracy is as good

Point = Tuple[str, int, float]  # way, devices, rate


class AccuracyCurve(NamedTuple):
    """A way with a number of devices. ``shares``: by rate, of the test images that were right.

    ``best``: the rate with the largest; ``largest``: the largest rate that is within NEAR of it.
    """

    way: str
    devices: int
    shares: List[IntervalEstimate]
    best: float
    largest: float


class Effect(NamedTuple):
    """What a way brings beside another, with so many devices at a rate, in pairs of seeds."""

    of: str
    beside: str
    devices: int
    rate: float
    gain: IntervalEstimate


class RateFindings(NamedTuple):
    """Everything that the study says."""

    rates: List[float]
    curves: List[AccuracyCurve]
    effects: List[Effect]


def measure(options: LearningRateOptions, store: InMemory) -> Findings:
    """Measure all points, and find the answer."""
    from gluonlab.study.short_training import (
        warn_of_stand_ins,
    )  # MXNet is loaded here, not for --help

    warn_of_stand_ins()
    with Sweep(store, lambda settings, seed: train_point(options, settings, seed)) as sweep:
        found = findings(options, sweep.run(options.points(), range(options.seeds), NAME))
    return Findings(as_plain(found), lambda language: report(found, options, language))


def train_point(
    options: LearningRateOptions, settings: Mapping[str, Any], seed: int
) -> Dict[str, Any]:
    """The share of test images that a training gets right in the end.

    A training that diverges gets none right.
    """
    from gluonlab.config import TrainConfig
    from gluonlab.study.short_training import AccuracyProbe, devices_of, read_dataset, watched

    config = TrainConfig(
        dataset=DATASET, model=MODEL, recipe="quick",
        batch_size=options.batch_size, epochs=options.epochs, optimizer="sgd",
        momentum=MOMENTUM, lr=settings["rate"], seed=seed, **WAYS[settings["way"]],
        **devices_of(settings["devices"]),
    )  # fmt: skip
    images = len(read_dataset(DATASET).train)
    steps = math.ceil(images / (options.batch_size * settings["devices"]))
    found = watched(config, AccuracyProbe([steps * options.epochs], target=math.inf))
    right = found["looks"][-1][2] if found["looks"] else 0.0
    return {"right": right, "diverged": found["diverged"]}


def findings(
    options: LearningRateOptions, measured: Sequence[Sequence[Mapping[str, Any]]]
) -> RateFindings:
    """What the measurements of all points say; each has a value for each seed."""
    by_point: Dict[Point, List[float]] = {
        (point["way"], point["devices"], point["rate"]): [each["right"] for each in of_seeds]
        for point, of_seeds in zip(options.points(), measured)
    }
    curves = [
        _curve(way, count, [by_point[way, count, rate] for rate in options.rates], options.rates)
        for way in WAYS
        for count in options.devices
        if (way, count, options.rates[0]) in by_point
    ]
    return RateFindings(options.rates, curves, _effects(by_point, curves))


def _curve(
    way: str, count: int, shares: Sequence[List[float]], rates: Sequence[float]
) -> AccuracyCurve:
    medians = [median(each) for each in shares]
    best = max(range(len(rates)), key=lambda place: (medians[place], -place))
    near = [rate for rate, each in zip(rates, medians) if each >= medians[best] - NEAR]
    numbers = [found for found in map(middle, shares) if found is not None]
    return AccuracyCurve(way, count, numbers, rates[best], max(near))


def _effects(
    by_point: Mapping[Point, List[float]], curves: Sequence[AccuracyCurve]
) -> List[Effect]:
    """Of the linear rule at the rate that is best for the fewest devices; of the others where the
    way beside them trains with the largest rate that is as good.
    """
    by_way = {(each.way, each.devices): each for each in curves}
    first, last = by_way[SAME, curves[0].devices], curves[-1].devices
    places = [(LINEAR, SAME, first.best)]
    for of, beside in ((WARM_UP, LINEAR), (WARM_UP, UNCORRECTED)):
        curve: Optional[AccuracyCurve] = by_way.get((beside, last))
        if curve is not None:
            places.append((of, beside, curve.largest))
    return [
        Effect(of, beside, last, rate,
               difference(by_point[of, last, rate], by_point[beside, last, rate]))
        for of, beside, rate in places
    ]  # fmt: skip


# --- the report


def report(found: RateFindings, options: LearningRateOptions, language: str) -> StudyReport:
    """What the study says."""
    said = read_words(NAME, language)
    charts = {way: _chart(way, found, options, said) for way in WAYS}
    lines = [_best(way, found, said) for way in WAYS]
    lines += [_effect(each, said) for each in found.effects]
    method = said["method"].format(
        model=MODEL.upper(), batch=options.batch_size, epochs=options.epochs, momentum=MOMENTUM,
        seeds=options.seeds,
    )  # fmt: skip
    named = said["settings"]
    settings = {
        named["devices"]: ", ".join(map(str, options.devices)),
        named["seeds"]: str(options.seeds),
        named["epochs"]: str(options.epochs),
        named["machine"]: cpu_model(),
    }
    return StudyReport(
        said["title"], lines, charts, [_table(found, options, said)], [method], settings, language
    )


def _of_way(way: str, found: RateFindings) -> List[AccuracyCurve]:
    """Its curves; for one device the linear rule changes nothing."""
    return [
        each
        for each in found.curves
        if each.way == way or (way == LINEAR and (each.way, each.devices) == (SAME, 1))
    ]


def _chart(
    way: str, found: RateFindings, options: LearningRateOptions, said: Dict[str, Any]
) -> Chart:
    curves = []
    for each in _of_way(way, found):
        shares = [share.scaled(100) for share in each.shares]
        points = [(rate, share.value) for rate, share in zip(found.rates, shares)]
        name = said["devices"]["one" if each.devices == 1 else "several"].format(
            count=each.devices, batch=number(each.devices * options.batch_size)
        )
        kind = options.devices.index(each.devices) % KINDS
        curves.append(Curve(name, points, kind, [share.ends for share in shares]))
    return Chart(
        said["chart"].format(way=said["ways"][way]),
        Axis(said["x"], log=True, ticks=found.rates),
        Axis(said["y"], lowest=0, highest=100),
        curves,
        notes=[_best(way, found, said)],
    )


def _devices(count: int, said: Dict[str, Any]) -> str:
    return str(said["device"] if count == 1 else said["several"].format(count=count))


def _best(way: str, found: RateFindings, said: Dict[str, Any]) -> str:
    rates = said["and"].join(
        said["rate"].format(rate=number(each.best), devices=_devices(each.devices, said))
        for each in _of_way(way, found)
    )
    return str(said["best"].format(way=said["ways"][way], rates=rates))


def _effect(effect: Effect, said: Dict[str, Any]) -> str:
    gain = effect.gain.scaled(100)
    return str(said["effect"].format(
        devices=_devices(effect.devices, said), rate=number(effect.rate),
        of=said["ways"][effect.of], beside=said["ways"][effect.beside],
        gain=gain.value, ends=gain.interval(said, float),
    ))  # fmt: skip


def _table(found: RateFindings, options: LearningRateOptions, said: Dict[str, Any]) -> Table:
    rows = []
    for each in found.curves:
        best = each.shares[found.rates.index(each.best)].scaled(100)
        rows.append([
            said["ways"][each.way],
            str(each.devices),
            number(each.devices * options.batch_size),
            number(each.best),
            f"{best.value:.1f} %",
            best.range("{:.1f}".format),
            number(each.largest),
        ])  # fmt: skip
    return Table(said["title"], said["heads"], rows, said["note"])


STUDY = Study(NAME, choose, read, measure)
