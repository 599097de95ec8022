"""Trainings with each rate, way and number of devices, and what they say."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.config import TrainConfig
from gluonlab.study.learning_rate.names import (
    DATASET,
    LINEAR,
    MODEL,
    MOMENTUM,
    SAME,
    UNCORRECTED,
    WARM_UP,
    WAYS,
    Options,
)
from gluonlab.study.numbers import Number, difference, middle
from gluonlab.study.stand_ins import devices_of
from gluonlab.study.trial import Watch, read, watched

NEAR = 0.02  # of the best accuracy is as good

Point = Tuple[str, int, float]  # way, devices, rate


class Curve(NamedTuple):
    """A way with a number of devices. ``shares``: by rate, of the test images that were right.

    ``best``: the rate with the largest; ``largest``: the largest rate that is within NEAR of it.
    """

    way: str
    devices: int
    shares: List[Number]
    best: float
    largest: float


class Effect(NamedTuple):
    """What a way brings beside another, with so many devices at a rate, in pairs of seeds."""

    of: str
    beside: str
    devices: int
    rate: float
    gain: Number


class Found(NamedTuple):
    """Everything that the study says."""

    rates: List[float]
    curves: List[Curve]
    effects: List[Effect]


def measure(options: Options) -> Callable[[Mapping[str, Any], int], Dict[str, Any]]:
    """What measures a point: the share of test images that a training gets right in the end.

    A training that diverges gets none right.
    """

    def one(settings: Mapping[str, Any], number: int) -> Dict[str, Any]:
        config = TrainConfig(
            dataset=DATASET, model=MODEL, recipe="quick",
            batch_size=options.batch_size, epochs=options.epochs, optimizer="sgd",
            momentum=MOMENTUM, lr=settings["rate"], seed=number, **WAYS[settings["way"]],
            **devices_of(settings["devices"]),
        )  # fmt: skip
        images = len(read(DATASET).train)
        steps = math.ceil(images / (options.batch_size * settings["devices"]))
        found = watched(config, Watch([steps * options.epochs], target=math.inf))
        right = found["looks"][-1][2] if found["looks"] else 0.0
        return {"right": right, "diverged": found["diverged"]}

    return one


def findings(options: Options, measured: Sequence[Sequence[Mapping[str, Any]]]) -> Found:
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
    return Found(options.rates, curves, _effects(by_point, curves))


def _curve(way: str, count: int, shares: Sequence[List[float]], rates: Sequence[float]) -> Curve:
    medians = [median(each) for each in shares]
    best = max(range(len(rates)), key=lambda place: (medians[place], -place))
    near = [rate for rate, each in zip(rates, medians) if each >= medians[best] - NEAR]
    numbers = [found for found in map(middle, shares) if found is not None]
    return Curve(way, count, numbers, rates[best], max(near))


def _effects(by_point: Mapping[Point, List[float]], curves: Sequence[Curve]) -> List[Effect]:
    """Of the linear rule at the rate that is best for the fewest devices; of the others where the
    way beside them trains with the largest rate that is as good.
    """
    by_way = {(each.way, each.devices): each for each in curves}
    first, last = by_way[SAME, curves[0].devices], curves[-1].devices
    places = [(LINEAR, SAME, first.best)]
    for of, beside in ((WARM_UP, LINEAR), (WARM_UP, UNCORRECTED)):
        curve: Optional[Curve] = by_way.get((beside, last))
        if curve is not None:
            places.append((of, beside, curve.largest))
    return [
        Effect(of, beside, last, rate,
               difference(by_point[of, last, rate], by_point[beside, last, rate]))
        for of, beside, rate in places
    ]  # fmt: skip
