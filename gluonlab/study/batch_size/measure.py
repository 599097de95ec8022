"""Steps to a target by batch size: the rate is tuned at each, then several seeds are trained."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.study.batch_size.findings import Found, Row, found
from gluonlab.study.batch_size.names import EPOCHS, PANELS, STEPS, Options, Panel
from gluonlab.study.numbers import Number, middle
from gluonlab.study.stand_ins import devices_of
from gluonlab.study.sweep.engine import Sweep
from gluonlab.study.trial import Watch, growing, read, watched

FACTOR = 2.0  # between the rates that are tried
FIRST_TUNING_SEED = 1000  # those that tune train nothing that is reported
# Rates in a row, in each direction, that bring nothing: while none has reached the target, and
# afterwards, since a single one may have had bad luck.
HOPELESS, PATIENCE = 3, 2


class SizeFound(NamedTuple):
    """What was found for a batch size: the rate, and the measurements of each seed."""

    size: int
    rate: float
    limit: int
    steps_per_epoch: int
    trials: List[Dict[str, Any]]

    @property
    def reached(self) -> List[float]:
        """By seed, the steps to the target; infinite where it was not reached."""
        return [math.inf if each["reached"] is None else each["reached"] for each in self.trials]

    @property
    def seconds(self) -> List[float]:
        """By seed, the seconds of that many steps."""
        return [
            next((look[1] for look in each["looks"] if look[0] == each["reached"]), math.inf)
            for each in self.trials
        ]

    def errors(self, steps: int) -> List[Tuple[float, float]]:
        """By seed, the shares of training and test images that are wrong after so many steps.

        Those that diverged before have no such pair.
        """
        looks = [look for each in self.trials for look in each["looks"] if look[0] == steps]
        return [(1 - train, 1 - test) for _, _, test, train in looks if train is not None]

    @property
    def best(self) -> float:
        """The largest share of test images that any trial got right."""
        return max((look[2] for each in self.trials for look in each["looks"]), default=0.0)


def measure(options: Options) -> Callable[[Mapping[str, Any], int], Dict[str, Any]]:
    """What measures a point: a training of a panel with a batch size and a rate."""

    def one(settings: Mapping[str, Any], number: int) -> Dict[str, Any]:
        panel = PANELS[settings["panel"]]
        thorough = settings.get("thorough", [])
        watch = Watch(
            growing(settings["limit"], panel.resolution),
            options.panels[settings["panel"]]["target"],
            thorough,
        )
        per_epoch = _steps_per_epoch(panel, settings["size"])
        longest = max([settings["limit"], *thorough])
        config = TrainConfig(
            dataset=panel.dataset, model=panel.model, recipe="quick",
            global_batch_size=settings["size"], epochs=math.ceil(longest / per_epoch),
            optimizer="sgd", momentum=panel.momentum, lr=settings["rate"],
            seed=number if thorough else FIRST_TUNING_SEED + number,
            **({} if options.gpus is None else devices_of(options.gpus)),
        )  # fmt: skip
        return watched(config, watch)

    return one


def study(name: str, options: Options, sweep: Sweep) -> List[SizeFound]:
    """Everything about a panel, by batch size. Raises ConfigError for an impossible size."""
    panel, sizes = PANELS[name], options.panels[name]["sizes"]
    images = len(read(panel.dataset).train)
    if sizes[-1] > images:
        raise ConfigError(
            f"--sizes {sizes[-1]}: {panel.dataset} has {images:,} training images: "
            "give smaller batch sizes"
        )
    rates: List[float] = []
    for place, size in enumerate(sizes):
        # between the linear rule and none: the search goes on from there
        grown = rates[-1] * math.sqrt(size / sizes[place - 1]) if rates else panel.rate
        first = FACTOR ** round(math.log(grown, FACTOR))
        rates.append(_tuned(name, size, first, options, sweep))
    points = [_final(name, size, rate) for size, rate in zip(sizes, rates)]
    measured = sweep.run(points, range(options.seeds), label=f"{name}: seeds")
    return [
        SizeFound(size, rate, point["limit"], _steps_per_epoch(panel, size), trials)
        for size, rate, point, trials in zip(sizes, rates, points, measured)
    ]


def _final(name: str, size: int, rate: float) -> Dict[str, Any]:
    panel = PANELS[name]
    thorough = {panel.equal_steps, panel.equal_epochs * _steps_per_epoch(panel, size)}
    point = {"panel": name, "size": size, "rate": rate, "limit": limit(panel, size)}
    return {**point, "thorough": sorted(thorough)}


def _steps_per_epoch(panel: Panel, size: int) -> int:
    return math.ceil(len(read(panel.dataset).train) / size)


def limit(panel: Panel, size: int) -> int:
    """The steps after which a training without the target is given up."""
    return max(10, min(panel.limit, panel.most_images // size))


def _tuned(name: str, size: int, first: float, options: Options, sweep: Sweep) -> float:
    """The rate with the fewest steps, the median of some seeds; larger and smaller ones are worse.

    A rate is given up where it is not better than the best so far. Of none that reaches the target,
    the one with the most images right.
    """
    best, fewest, most_right = first, math.inf, -1.0
    for factor in (FACTOR, 1 / FACTOR):
        rate, failed = first if factor > 1 else first * factor, 0
        while failed < (PATIENCE if fewest < math.inf else HOPELESS):
            most = limit(PANELS[name], size)
            point = {"panel": name, "size": size, "rate": rate}
            point["limit"] = most if fewest == math.inf else int(fewest)
            [trials] = sweep.run([point], range(options.tuning_seeds), label=f"{name}: rate")
            tried = SizeFound(size, rate, most, 1, trials)
            steps: float = median(tried.reached)
            if (steps, -tried.best) < (fewest, -most_right):
                best, fewest, most_right, failed = rate, steps, tried.best, 0
            else:
                failed += 1
            rate *= factor
    return best


def findings(name: str, sizes: List[SizeFound]) -> Found:
    """What the measurements of a panel say."""
    return found([_row(PANELS[name], each) for each in sizes], [each.reached for each in sizes])


def _row(panel: Panel, of: SizeFound) -> Row:
    equal = {STEPS: panel.equal_steps, EPOCHS: panel.equal_epochs * of.steps_per_epoch}
    return Row(
        of.size,
        of.rate,
        middle(of.reached),
        middle([steps / of.steps_per_epoch for steps in of.reached]),
        middle(of.seconds),
        {which: _errors(of, steps) for which, steps in equal.items()},
        sum(map(math.isfinite, of.reached)),
        len(of.trials),
        of.limit,
        of.best,
    )


def _errors(of: SizeFound, steps: int) -> Optional[Tuple[Number, Number]]:
    """Shares of training and test images that are wrong; a seed that diverged has all wrong."""
    pairs = of.errors(steps)
    pairs += [(1.0, 1.0)] * (len(of.trials) - len(pairs))
    trained, tested = (middle(shares) for shares in zip(*pairs))
    return None if trained is None or tested is None else (trained, tested)
