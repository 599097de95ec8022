"""``study batch-size``: how many steps, epochs and seconds a target takes with each batch size.

The rate is tuned at each size, then several seeds are trained. The three regimes are those of C. J.
Shallue et al., "Measuring the effects of data parallelism on neural network training", 2019 (first
2018), section 4.1, which tells them by eye: perfect scaling, where twice the batch takes half the
steps; diminishing returns; and no further benefit, called stagnation here. Here a rule tells them:
how steeply steps fall as the batch grows.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import bootstrap
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.config.option_types import real_number_check, whole_number_check
from gluonlab.drawing.svg_chart import Axis, Chart, Curve, Region, number
from gluonlab.errors import ConfigError, DataError, unknown
from gluonlab.study.study import (
    Findings,
    IntervalEstimate,
    Study,
    StudyReport,
    Table,
    as_plain,
    ascending,
    check_options,
    middle,
    positive,
    read_words,
    whole_number,
)
from gluonlab.study.sweep import InMemory, Sweep

NAME = "batch-size"
STEPS, EPOCHS = "steps", "epochs"  # what is equal where errors are compared
MOST_IMAGES = 2**20  # of a batch


class Panel(NamedTuple):
    """A network of `gluonlab.models` that is trained on a data set with plain SGD.

    ``target``: the share of test images that is to be right. ``sizes``: of batches, ``quick`` those
    of --quick. ``rate``: with which the search for the smallest size begins. ``limit``: of steps;
    ``most_images``: so many in all steps of a training. ``equal_steps``, ``equal_epochs``: after
    which all sizes are compared. ``resolution``: each look is so many times as late as the last.
    """

    title: str
    dataset: str
    model: str
    momentum: float
    target: float
    sizes: Tuple[int, ...]
    quick: Tuple[int, ...]
    rate: float
    limit: int
    most_images: int
    equal_steps: int
    equal_epochs: int
    resolution: float


def _powers(first: int, last: int) -> Tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1))


def _downloaded(title: str, dataset: str, model: str, target: float) -> Panel:
    sizes = _powers(3, 13)
    return Panel(title, dataset, model, 0.9, target, sizes, sizes[::2], 2**-9, 30_000, 10_000_000,
                 500, 3, 1.1)  # fmt: skip


PANELS = {
    "digits": Panel(
        "MLP on handwritten digits", "digits", "mlp", 0.0, 0.93, _powers(0, 10),
        (2, 4, 8, 16, 32, 64, 256, 1024), 2**-6, 8000, 400_000, 64, 2, 1.05,
    ),
    "mnist": _downloaded("Simple CNN on MNIST", "mnist", "lenet", 0.99),
    "fashion-mnist": _downloaded("Simple CNN on Fashion-MNIST", "fashion-mnist", "lenet", 0.9),
    "cifar10": _downloaded("ResNet-8 on CIFAR-10", "cifar10", "resnet8", 0.7),
}  # fmt: skip
SEEDS, TUNING_SEEDS = {False: 7, True: 4}, {False: 3, True: 2}  # by --quick


class BatchSizeOptions(NamedTuple):
    """What was asked: names of panels, their batch sizes and targets, seeds, and devices."""

    panels: Dict[str, Dict[str, Any]]
    seeds: int
    tuning_seeds: int
    gpus: Optional[int]


def choose(
    quick: bool,
    panels: Optional[str] = None,
    sizes: Optional[str] = None,
    target: Optional[str] = None,
    seeds: Optional[str] = None,
    gpus: Optional[str] = None,
) -> BatchSizeOptions:
    """The options of a command, as text. Raises ConfigError."""
    chosen = {}
    for name in _names(panels, quick):
        if name not in PANELS:
            raise ConfigError(unknown("panel", name, PANELS))
        panel = PANELS[name]
        usual = panel.quick if quick else panel.sizes
        own = list(usual) if sizes is None else _sizes(sizes)
        share = panel.target
        if target is not None:
            share = float(real_number_check(0, 1, above_minimum=True)("--target", target))
        chosen[name] = {"sizes": own, "target": share}
    return BatchSizeOptions(
        chosen,
        SEEDS[quick] if seeds is None else whole_number_check(1, 1000)("--seeds", seeds),
        TUNING_SEEDS[quick],
        None if gpus is None else whole_number_check(1)("--gpus", gpus),
    )


def _names(given: Optional[str], quick: bool) -> List[str]:
    """The panels that are named, else those whose data are here, else the digits."""
    from gluonlab.study.short_training import read_dataset  # MXNet is loaded here, not for --help

    if given is not None:
        names = [each.strip() for each in given.split(",")]
        for name in filter(PANELS.__contains__, names):
            read_dataset(PANELS[name].dataset)
        return names
    here = []
    for name, panel in PANELS.items():
        try:
            if not quick and name != "digits":
                read_dataset(panel.dataset)
                here.append(name)
        except DataError:
            pass
    return here or ["digits"]


def _sizes(text: str) -> List[int]:
    number = whole_number_check(1, MOST_IMAGES)
    sizes = sorted({number("--sizes", part.strip()) for part in text.split(",")})
    if len(sizes) < 2:
        raise ConfigError(f"--sizes {text}: give two batch sizes or more, such as 16,64,256")
    return sizes


def read(options: Mapping[str, Any]) -> BatchSizeOptions:
    """The options as a folder has them. Raises ValueError for anything else."""
    fits = {
        "panels": lambda panels: isinstance(panels, dict) and set() < set(panels) <= set(PANELS),
        "seeds": whole_number(1, 1000), "tuning_seeds": whole_number(1, 1000),
        "gpus": lambda count: count is None or whole_number(1)(count),
    }  # fmt: skip
    check_options(options, fits)
    of_panel = {"sizes": ascending(whole_number(1, MOST_IMAGES), 2), "target": positive(1)}
    for panel in options["panels"].values():
        if not isinstance(panel, dict):
            raise ValueError("panels")
        check_options(panel, of_panel)
    return BatchSizeOptions(**options)


# --- measurements

FACTOR = 2.0  # between the rates that are tried
FIRST_TUNING_SEED = 1000  # those that tune train nothing that is reported
# Rates in a row, in each direction, that bring nothing: while none has reached the target, and
# afterwards, since a single one may have had bad luck.
HOPELESS, PATIENCE = 3, 2


class SizeTrials(NamedTuple):
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


class SizeRow(NamedTuple):
    """A batch size. ``errors``: shares that are wrong, by what is equal: (training, test).

    ``steps``, ``epochs`` and ``seconds`` are None where half of the seeds did not reach the target
    in ``limit`` steps; ``best`` is the largest share of test images that was right.
    """

    size: int
    rate: float
    steps: Optional[IntervalEstimate]
    epochs: Optional[IntervalEstimate]
    seconds: Optional[IntervalEstimate]
    errors: Dict[str, Optional[Tuple[IntervalEstimate, IntervalEstimate]]]
    reached: int
    seeds: int
    limit: int
    best: float


class PanelFindings(NamedTuple):
    """A panel. ``perfect`` and ``stagnant``: where these regimes end and begin, if they are there.

    Regimes are of the sizes that reached the target, if there are two or more.
    """

    rows: List[SizeRow]
    regimes: List[Regime]
    perfect: Optional[IntervalEstimate]
    stagnant: Optional[IntervalEstimate]


def measure(options: BatchSizeOptions, store: InMemory) -> Findings:
    """Measure all panels, and find the answer."""
    from gluonlab.study.short_training import (
        warn_of_stand_ins,
    )  # MXNet is loaded here, not for --help

    if options.gpus is not None:
        warn_of_stand_ins()
    with Sweep(store, lambda settings, seed: train_point(options, settings, seed)) as sweep:
        found = {
            name: panel_findings(name, measure_panel(name, options, sweep))
            for name in options.panels
        }
    missed = {name: why for name in found for why in [_missed(name, found[name], options)] if why}
    others = {name: each for name, each in found.items() if name not in missed}
    failure = f"{'; '.join(missed.values())}: give a smaller --target" if missed else ""
    return Findings(
        {"panels": as_plain(found)},
        lambda language: report(found, options, language),
        failure,
        Findings({"panels": as_plain(others)}, lambda language: report(others, options, language))
        if others
        else None,
    )


def _missed(name: str, found: PanelFindings, options: BatchSizeOptions) -> str:
    """What to say of a panel in which no batch size reached the target."""
    if any(row.steps is not None for row in found.rows):
        return ""
    best = max(found.rows, key=lambda row: row.best)
    return (
        f"{name}: no batch size reached {options.panels[name]['target']:g} of the test images; "
        f"the best was {best.best:.4f}, with batches of {best.size}"
    )


def train_point(
    options: BatchSizeOptions, settings: Mapping[str, Any], number: int
) -> Dict[str, Any]:
    """Train a panel with a batch size and a rate."""
    from gluonlab.config import TrainConfig
    from gluonlab.study.short_training import AccuracyProbe, devices_of, growing, watched

    panel = PANELS[settings["panel"]]
    thorough = settings.get("thorough", [])
    watch = AccuracyProbe(
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


def measure_panel(name: str, options: BatchSizeOptions, sweep: Sweep) -> List[SizeTrials]:
    """Everything about a panel, by batch size. Raises ConfigError for an impossible size."""
    panel, sizes = PANELS[name], options.panels[name]["sizes"]
    images = _images(panel)
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
        SizeTrials(size, rate, point["limit"], _steps_per_epoch(panel, size), trials)
        for size, rate, point, trials in zip(sizes, rates, points, measured)
    ]


def _final(name: str, size: int, rate: float) -> Dict[str, Any]:
    panel = PANELS[name]
    thorough = {panel.equal_steps, panel.equal_epochs * _steps_per_epoch(panel, size)}
    point = {"panel": name, "size": size, "rate": rate, "limit": limit(panel, size)}
    return {**point, "thorough": sorted(thorough)}


def _steps_per_epoch(panel: Panel, size: int) -> int:
    return math.ceil(_images(panel) / size)


def _images(panel: Panel) -> int:
    from gluonlab.study.short_training import read_dataset

    return len(read_dataset(panel.dataset).train)


def limit(panel: Panel, size: int) -> int:
    """The steps after which a training without the target is given up."""
    return max(10, min(panel.limit, panel.most_images // size))


def _tuned(name: str, size: int, first: float, options: BatchSizeOptions, sweep: Sweep) -> float:
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
            tried = SizeTrials(size, rate, most, 1, trials)
            steps: float = median(tried.reached)
            if (steps, -tried.best) < (fewest, -most_right):
                best, fewest, most_right, failed = rate, steps, tried.best, 0
            else:
                failed += 1
            rate *= factor
    return best


def panel_findings(name: str, sizes: List[SizeTrials]) -> PanelFindings:
    """What the measurements of a panel say."""
    rows = [_row(PANELS[name], each) for each in sizes]
    return regime_findings(rows, [each.reached for each in sizes])


def _row(panel: Panel, of: SizeTrials) -> SizeRow:
    equal = {STEPS: panel.equal_steps, EPOCHS: panel.equal_epochs * of.steps_per_epoch}
    return SizeRow(
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


def _errors(of: SizeTrials, steps: int) -> Optional[Tuple[IntervalEstimate, IntervalEstimate]]:
    """Shares of training and test images that are wrong; a seed that diverged has all wrong."""
    pairs = of.errors(steps)
    pairs += [(1.0, 1.0)] * (len(of.trials) - len(pairs))
    trained, tested = (middle(shares) for shares in zip(*pairs))
    return None if trained is None or tested is None else (trained, tested)


# --- regimes

PERFECT, DIMINISHING, STAGNATION = REGIMES = ("perfect", "diminishing", "stagnation")
STEEP, FLAT = 0.75, 0.25


class Regime(NamedTuple):
    """Neighbouring batch sizes of one regime, from ``left`` to ``right``."""

    regime: str
    left: float
    right: float


def exponents(sizes: Sequence[float], steps: Sequence[float]) -> List[float]:
    """Between neighbouring sizes the a of steps ~ size**-a: 1 where twice as large takes half."""
    return [
        math.log(before / after) / math.log(larger / size)
        for size, larger, before, after in zip(sizes, sizes[1:], steps, steps[1:])
    ]


def falling(values: Sequence[float], weights: Sequence[float]) -> List[float]:
    """The values that never rise and are nearest in squares, by pooling those that do.

    R. Barlow et al., "Statistical inference under order restrictions", 1972, section 1.2.
    """
    pools: List[Tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights):
        pool = (value, weight, 1)
        while pools and pools[-1][0] < pool[0]:
            mean, own, count = pools.pop()
            total = own + pool[1]
            pool = ((mean * own + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


def regime(exponent: float) -> str:
    """Its name, for the exponent of one gap between sizes."""
    if exponent >= STEEP:
        return PERFECT
    return STAGNATION if exponent <= FLAT else DIMINISHING


def parts(sizes: Sequence[float], steps: Sequence[float]) -> List[Regime]:
    """The regimes that were seen, from small batches to large ones; ``sizes`` ascend.

    The exponent of a longer gap has more weight. Raises ValueError for fewer than two sizes.
    """
    if len(sizes) < 2:
        raise ValueError("a regime is what lies between two sizes")
    widths = [math.log(larger / size) for size, larger in zip(sizes, sizes[1:])]
    named = [regime(each) for each in falling(exponents(sizes, steps), widths)]
    ends = [0, *accumulate(named.count(each) for each in REGIMES)]
    return [
        Regime(each, sizes[begin], sizes[end])
        for each, begin, end in zip(REGIMES, ends, ends[1:])
        if end > begin
    ]


def perfect_until(sizes: Sequence[float], steps: Sequence[float]) -> float:
    """The largest size of perfect scaling; the smallest of all where there is none."""
    found = [part.right for part in parts(sizes, steps) if part.regime == PERFECT]
    return found[0] if found else sizes[0]


def stagnant_from(sizes: Sequence[float], steps: Sequence[float]) -> Optional[float]:
    """The smallest size from which more brings nothing; None where all still bring something."""
    found = [part.left for part in parts(sizes, steps) if part.regime == STAGNATION]
    return found[0] if found else None


def regime_findings(rows: Sequence[SizeRow], reached: Sequence[Sequence[float]]) -> PanelFindings:
    """``reached``: of each row the steps to the target, by seed."""
    whole = [(row, steps) for row, steps in zip(rows, reached) if row.steps is not None]
    sizes = [row.size for row, _ in whole]
    steps = [median(each) for _, each in whole]
    if len(whole) < 2:
        return PanelFindings(list(rows), [], None, None)

    def drawn(
        of: Callable[[Sequence[float], Sequence[float]], Optional[float]],
    ) -> Callable[[List[List[float]]], Optional[float]]:
        def statistic(groups: List[List[float]]) -> Optional[float]:
            medians = [median(each) for each in groups]
            return of(sizes, medians) if all(map(math.isfinite, medians)) else None

        return statistic

    groups = [each for _, each in whole]
    until, since = perfect_until(sizes, steps), stagnant_from(sizes, steps)
    return PanelFindings(
        list(rows),
        parts(sizes, steps),
        IntervalEstimate(until, bootstrap(groups, drawn(perfect_until)))
        if until > sizes[0]
        else None,
        None if since is None else IntervalEstimate(since, bootstrap(groups, drawn(stagnant_from))),
    )


# --- the report


def report(
    found: Dict[str, PanelFindings], options: BatchSizeOptions, language: str
) -> StudyReport:
    """What the study says of its panels."""
    said = read_words(NAME, language)
    charts: Dict[str, Chart] = {}
    sentences: List[str] = []
    tables: List[Table] = []
    method: List[str] = []
    for name, panel in found.items():
        one = _PanelReport(name, panel, options, said)
        charts.update(one.charts())
        sentences += one.sentences()
        tables.append(one.table())
        method.append(one.method())
    settings = {
        said["settings"]["seeds"]: str(options.seeds),
        said["settings"]["devices"]: str(options.gpus or 1),
        said["settings"]["machine"]: cpu_model(),
    }
    method.append(said["rule"])
    return StudyReport(said["title"], sentences, charts, tables, method, settings, language)


class _PanelReport:
    def __init__(
        self, name: str, found: PanelFindings, options: BatchSizeOptions, said: Dict[str, Any]
    ) -> None:
        self.name, self.found, self.said = name, found, said
        self.panel, self.options = PANELS[name], options
        self.fill = {
            "panel": said["panels"][name],
            "target": f"{options.panels[name]['target']:.1%}".replace(".0%", "%").replace(
                "%", " %"
            ),
            "steps": self.panel.equal_steps,
            "epochs": self.panel.equal_epochs,
        }
        self.reached = [row for row in found.rows if row.steps is not None]

    def charts(self) -> Dict[str, Chart]:
        """By the names of their files; those of a target that was never reached are left out."""
        made = {}
        if self.reached:
            for which in ("steps", "epochs", "seconds"):
                made[f"{self.name}-{which}"] = self._to_target(which)
        for which in (STEPS, EPOCHS):
            made[f"{self.name}-equal-{which}"] = self._errors(which)
        return made

    def _to_target(self, which: str) -> Chart:
        points = [(row.size, getattr(row, which)) for row in self.reached]
        curves = [_curve(self.said["measured"].format(seeds=self.options.seeds), points, 0)]
        if which == "steps":
            first, fewest = points[0][0], points[0][1].value
            lowest = min(each.value for _, each in points) / 3
            last = min(points[-1][0], first * fewest / lowest)
            ends = [(first, fewest), (last, fewest * first / last)]
            curves.append(Curve(self.said["ideal"], ends, None, dashed=True))
        regions = [
            Region(self.said["regimes"][part.regime], part.left, part.right,
                   REGIMES.index(part.regime))
            for part in self.found.regimes
        ]  # fmt: skip
        notes = [*self._regimes(), self.said["rule"]] if which == "steps" else []
        return Chart(
            self.said["charts"][which].format(**self.fill),
            self._sizes(),
            Axis(self.said["axes"][which], log=True),
            curves,
            regions,
            notes,
        )

    def _sizes(self) -> Axis:
        sizes = [row.size for row in self.found.rows]
        return Axis(self.said["size"], log=True, ticks=sizes)

    def _errors(self, which: str) -> Chart:
        parts = []
        for place, name in enumerate(("test", "train")):
            pairs = [(row.size, row.errors[which]) for row in self.found.rows]
            points = [
                (size, pair[1 - place].scaled(100)) for size, pair in pairs if pair is not None
            ]
            parts.append(_curve(self.said[name], points, place, dashed=name == "train"))
        title = self.said["charts"][f"equal-{which}"].format(**self.fill)
        return Chart(title, self._sizes(), Axis(self.said["axes"]["errors"], lowest=0), parts)

    def _regimes(self) -> List[str]:
        """What regimes there are, and where they end."""
        if not self.found.regimes:
            return []
        told = [
            self.said["between"].format(
                regime=self.said["regimes"][part.regime],
                left=number(part.left),
                right=number(part.right),
            )
            for part in self.found.regimes
        ]
        comma = "、" if self.said["all"].endswith("。") else "; "
        lines = [self.said["all"].format(parts=comma.join(told), **self.fill)]
        for which, at in (("perfect", self.found.perfect), ("stagnant", self.found.stagnant)):
            if at is not None:
                ends = at.interval(self.said, number)
                lines.append(self.said[which].format(size=number(at.value), ends=ends))
        return lines

    def sentences(self) -> List[str]:
        """What the figures show."""
        lines = self._regimes()
        few = min(self.reached, key=lambda row: _value(row.epochs), default=None)
        if few is not None and few is not self.reached[-1]:
            last = self.reached[-1]
            lines.append(self.said["cost"].format(
                few=number(_value(few.epochs)), small=number(few.size), large=number(last.size),
                many=number(_value(last.epochs)),
                times=f"{_value(last.epochs) / _value(few.epochs):.1f}",
            ))  # fmt: skip
        first, last = self.found.rows[0], self.found.rows[-1]
        ends = [row.errors[which] for which in (STEPS, EPOCHS) for row in (first, last)]
        if all(each is not None for each in ends):
            tested = [100 * each[1].value for each in ends if each is not None]
            lines.append(self.said["equal"].format(
                step_high=tested[0], step_low=tested[1], epoch_low=tested[2], epoch_high=tested[3],
                small=number(first.size), large=number(last.size), **self.fill,
            ))  # fmt: skip
        return [*lines, *self.missed()]

    def missed(self) -> List[str]:
        """A line for each batch size with which a seed did not reach the target."""
        return [
            self.said["missed"].format(
                size=number(row.size), reached=row.reached, seeds=row.seeds, limit=row.limit,
                rate=number(row.rate), best=f"{row.best:.1%}".replace("%", " %"),
                target=self.fill["target"],
            )
            for row in self.found.rows
            if row.reached < row.seeds
        ]  # fmt: skip

    def table(self) -> Table:
        """A row for each batch size."""
        rows = [self._row(row) for row in self.found.rows]
        return Table(str(self.fill["panel"]), self.said["heads"], rows)

    def _row(self, row: SizeRow) -> List[str]:
        never = self.said["never"] if row.steps is None else ""
        return [
            number(row.size),
            number(row.rate),
            never or number(_value(row.steps)),
            _range(row.steps),
            "" if never else number(_value(row.epochs)),
            "" if never else f"{_value(row.seconds):.2f}",
            _range(row.seconds),
            *(_shares(row.errors[which]) for which in (STEPS, EPOCHS)),
        ]

    def method(self) -> str:
        """How it was measured."""
        momentum = self.panel.momentum
        return str(self.said["method"].format(
            momentum=self.said["momentum"].format(momentum=momentum) if momentum else "",
            tuning=self.options.tuning_seeds, seeds=self.options.seeds,
            resolution=self.panel.resolution, target=self.fill["target"],
        ))  # fmt: skip


def _value(value: Optional[IntervalEstimate]) -> float:
    assert value is not None
    return value.value


def _curve(
    name: str, points: Sequence[Tuple[int, IntervalEstimate]], kind: int, dashed: bool = False
) -> Curve:
    places = [(float(size), each.value) for size, each in points]
    return Curve(name, places, kind, [each.ends for _, each in points], dashed)


def _range(value: Optional[IntervalEstimate]) -> str:
    return "" if value is None else value.range(number)


def _shares(pair: Optional[Tuple[IntervalEstimate, IntervalEstimate]]) -> str:
    return "" if pair is None else ", ".join(f"{100 * each.value:.1f} %" for each in pair)


STUDY = Study(NAME, choose, read, measure)
