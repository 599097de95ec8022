"""``study batch-size``: steps, epochs and seconds to a target accuracy for each batch size.

The learning rate is tuned at each batch size. The network is then trained with the best rate and
several seeds. The study finds three regimes of batch sizes (C. J. Shallue et al., "Measuring the
effects of data parallelism on neural network training", 2019, section 4.1):

- perfect scaling: with twice the batch size, training needs half the steps,
- diminishing returns,
- stagnation: with a larger batch, training needs the same number of steps.

Shallue et al. distinguish the regimes by eye. This module instead distinguishes the regimes by the
slope of steps against batch size.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import bootstrap_interval
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.config.option_checks import real_number_check, whole_number_check
from gluonlab.drawing.svg_chart import Axis, Chart, Curve, Region, format_number
from gluonlab.errors import ConfigError, DataError, unknown
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
    parse_integer_list,
    positive_check,
    read_translations,
    to_plain_values,
)
from gluonlab.study.sweep import MeasurementStore, Sweep

NAME = "batch-size"
STEPS, EPOCHS = "steps", "epochs"  # error rates are compared after equal steps or equal epochs
MAX_BATCH_SIZE = 2**20  # images


class Panel(NamedTuple):
    """A workload of the study: a network of `gluonlab.models` trained on a data set with plain SGD.

    - ``target``: the validation accuracy to reach.
    - ``sizes``, ``quick_sizes``: batch sizes, without and with --quick.
    - ``first_rate``: the first learning rate that is tried at the smallest size.
    - ``max_steps``, ``max_images``: limits of a training run.
    - ``equal_steps``, ``equal_epochs``: steps and epochs after which error rates are compared.
    - ``evaluation_ratio``: the step number of an evaluation divided by the step number of the
      previous evaluation.
    """

    dataset: str
    model: str
    momentum: float
    target: float
    sizes: Tuple[int, ...]
    quick_sizes: Tuple[int, ...]
    first_rate: float
    max_steps: int
    max_images: int
    equal_steps: int
    equal_epochs: int
    evaluation_ratio: float


def _powers_of_two(first: int, last: int) -> Tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1))


def _downloaded_panel(dataset: str, model: str, target: float) -> Panel:
    """Return the study's workload for one of the downloaded data sets."""
    sizes = _powers_of_two(3, 13)
    return Panel(
        dataset, model, momentum=0.9, target=target, sizes=sizes, quick_sizes=sizes[::2],
        first_rate=2**-9, max_steps=30_000, max_images=10_000_000, equal_steps=500, equal_epochs=3,
        evaluation_ratio=1.1,
    )  # fmt: skip


PANELS = {
    "digits": Panel(
        "digits", "mlp", momentum=0.0, target=0.93, sizes=_powers_of_two(0, 10),
        quick_sizes=(2, 4, 8, 16, 32, 64, 256, 1024), first_rate=2**-6, max_steps=8000,
        max_images=400_000, equal_steps=64, equal_epochs=2, evaluation_ratio=1.05,
    ),
    "mnist": _downloaded_panel("mnist", "lenet", 0.99),
    "fashion-mnist": _downloaded_panel("fashion-mnist", "lenet", 0.9),
    "cifar10": _downloaded_panel("cifar10", "resnet8", 0.7),
}  # fmt: skip
SEEDS, TUNING_SEEDS = {False: 7, True: 4}, {False: 3, True: 2}  # numbers without and with --quick


class BatchSizeOptions(NamedTuple):
    """Options of the study: workloads with batch sizes and targets, number of seeds, and GPUs."""

    panels: Dict[str, Dict[str, Any]]
    seeds: int
    tuning_seeds: int
    gpus: Optional[int]


def parse_options(
    quick: bool,
    panels: Optional[str] = None,
    batch_sizes: Optional[str] = None,
    target: Optional[str] = None,
    seeds: Optional[str] = None,
    gpus: Optional[str] = None,
) -> BatchSizeOptions:
    """Convert the options of the command from text. Raises ConfigError."""
    chosen = {}
    for name in _select_panels(panels, quick):
        if name not in PANELS:
            raise ConfigError(unknown("panel", name, PANELS))
        panel = PANELS[name]
        default_sizes = panel.quick_sizes if quick else panel.sizes
        panel_sizes = (
            list(default_sizes)
            if batch_sizes is None
            else parse_integer_list("--batch-sizes", batch_sizes, MAX_BATCH_SIZE, "batch sizes", "16,64,256")
        )
        panel_target = panel.target
        if target is not None:
            panel_target = float(real_number_check(0, 1, above_minimum=True)("--target", target))
        chosen[name] = {"sizes": panel_sizes, "target": panel_target}
    return BatchSizeOptions(
        chosen,
        SEEDS[quick] if seeds is None else whole_number_check(1, 1000)("--seeds", seeds),
        TUNING_SEEDS[quick],
        None if gpus is None else whole_number_check(1)("--gpus", gpus),
    )


def _select_panels(names_text: Optional[str], quick: bool) -> List[str]:
    """Return the named workloads, or by default the workloads whose data sets are on this machine.

    With ``quick``, or if there is no such data set, the default is ``digits``.
    """
    from gluonlab.study.short_training import read_dataset  # MXNet is loaded here, not for --help

    if names_text is not None:
        names = [name.strip() for name in names_text.split(",")]
        for name in filter(PANELS.__contains__, names):
            read_dataset(PANELS[name].dataset)
        return names
    available = []
    for name, panel in PANELS.items():
        try:
            if not quick and name != "digits":
                read_dataset(panel.dataset)
                available.append(name)
        except DataError:
            pass
    return available or ["digits"]


def load_options(options: Mapping[str, Any]) -> BatchSizeOptions:
    """Convert the options stored in a study's folder. Raises ValueError for invalid options."""
    checks = {
        "panels": lambda panels: isinstance(panels, dict) and set() < set(panels) <= set(PANELS),
        "seeds": integer_check(1, 1000), "tuning_seeds": integer_check(1, 1000),
        "gpus": lambda count: count is None or integer_check(1)(count),
    }  # fmt: skip
    check_options(options, checks)
    panel_checks = {"sizes": ascending_list_check(integer_check(1, MAX_BATCH_SIZE), 2), "target": positive_check(1)}
    for panel in options["panels"].values():
        if not isinstance(panel, dict):
            raise ValueError("panels")
        check_options(panel, panel_checks)
    return BatchSizeOptions(**options)


# --- measurements

RATE_FACTOR = 2.0  # ratio of neighboring learning rates that are tried
FIRST_TUNING_SEED = 1000  # reported trainings use other seeds
# The search for a rate ends in a direction after this many rates in a row without improvement. A
# single rate could be worse by chance.
PATIENCE_WITHOUT_TARGET, PATIENCE = 3, 2


class SizeTrials(NamedTuple):
    """The training runs with one batch size: the tuned rate, and the measurements for each seed."""

    size: int
    rate: float
    limit: int
    steps_per_epoch: int
    trials: List[Dict[str, Any]]

    @property
    def steps_to_target(self) -> List[float]:
        """Return each seed's steps to the target accuracy; infinite if it was not reached."""
        return [math.inf if trial["reached"] is None else trial["reached"] for trial in self.trials]

    @property
    def seconds_to_target(self) -> List[float]:
        """Return each seed's seconds to the target accuracy; infinite if it was not reached."""
        return [
            next((look[1] for look in trial["looks"] if look[0] == trial["reached"]), math.inf) for trial in self.trials
        ]

    def error_rates(self, steps: int) -> List[Tuple[float, float]]:
        """Return the error rates on training and validation images after ``steps``, by seed.

        Seeds whose training diverged earlier are omitted.
        """
        looks = [look for trial in self.trials for look in trial["looks"] if look[0] == steps]
        return [(1 - train, 1 - val) for _, _, val, train in looks if train is not None]

    @property
    def best_accuracy(self) -> float:
        """Return the highest validation accuracy over all seeds."""
        return max((look[2] for trial in self.trials for look in trial["looks"]), default=0.0)


class SizeRow(NamedTuple):
    """The findings for a batch size.

    - ``steps``, ``epochs``, ``seconds``: the median steps, epochs and seconds until the target was
      reached. None if half of the seeds did not reach the target in ``limit`` steps.
    - ``errors``: error rates on (training, validation) images, after equal STEPS and after equal
      EPOCHS.
    - ``best``: the highest validation accuracy.
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
    """The findings for a workload.

    ``perfect``: the batch size at which perfect scaling ends. ``stagnant``: the batch size at which
    stagnation starts. Regimes are computed only if at least two sizes reached the target.
    """

    rows: List[SizeRow]
    regimes: List[Regime]
    perfect: Optional[IntervalEstimate]
    stagnant: Optional[IntervalEstimate]


def measure(options: BatchSizeOptions, store: MeasurementStore) -> Findings:
    """Measure every workload, and return the findings."""
    # MXNet is loaded here, not for --help
    from gluonlab.study.short_training import warn_cpu_fallback

    if options.gpus is not None:
        warn_cpu_fallback()
    with Sweep(store, lambda settings, seed: train_to_target(options, settings, seed)) as sweep:
        findings = {name: analyze_panel(name, measure_panel(name, options, sweep)) for name in options.panels}
    failures = {
        name: message for name in findings for message in [_unreached_message(name, findings[name], options)] if message
    }
    reached = {name: panel_findings for name, panel_findings in findings.items() if name not in failures}
    failure = f"{'; '.join(failures.values())}: choose a smaller --target" if failures else ""
    return Findings(
        {"panels": to_plain_values(findings)},
        lambda language: build_report(findings, options, language),
        failure,
        Findings({"panels": to_plain_values(reached)}, lambda language: build_report(reached, options, language))
        if reached
        else None,
    )


def _unreached_message(name: str, findings: PanelFindings, options: BatchSizeOptions) -> str:
    """Return an error message if no batch size reached the target of workload ``name``, or ""."""
    if any(row.steps is not None for row in findings.rows):
        return ""
    best = max(findings.rows, key=lambda row: row.best)
    return (
        f"{name}: no batch size reached validation accuracy {options.panels[name]['target']:g}; "
        f"the best was {best.best:.4f}, with batches of {best.size}"
    )


def train_to_target(options: BatchSizeOptions, settings: Mapping[str, Any], round: int) -> Dict[str, Any]:
    """Train to the workload's target accuracy or step limit, and return all evaluations."""
    from gluonlab.config import TrainConfig
    from gluonlab.study.short_training import AccuracyProbe, device_settings, log_spaced_steps, train_with_probe

    panel = PANELS[settings["panel"]]
    train_eval_steps = settings.get("thorough", [])
    probe = AccuracyProbe(
        log_spaced_steps(settings["limit"], panel.evaluation_ratio),
        options.panels[settings["panel"]]["target"],
        train_eval_steps,
    )
    steps_per_epoch = _steps_per_epoch(panel, settings["size"])
    most_steps = max([settings["limit"], *train_eval_steps])
    config = TrainConfig(
        dataset=panel.dataset, model=panel.model, recipe="quick",
        global_batch_size=settings["size"], epochs=math.ceil(most_steps / steps_per_epoch),
        optimizer="sgd", momentum=panel.momentum, lr=settings["rate"],
        seed=round if train_eval_steps else FIRST_TUNING_SEED + round,
        **({} if options.gpus is None else device_settings(options.gpus)),
    )  # fmt: skip
    return train_with_probe(config, probe)


def measure_panel(name: str, options: BatchSizeOptions, sweep: Sweep) -> List[SizeTrials]:
    """Tune the learning rate of a workload at each batch size, and train with this rate.

    Raises ConfigError for an impossible size.
    """
    panel, sizes = PANELS[name], options.panels[name]["sizes"]
    images = _training_images(panel)
    if sizes[-1] > images:
        raise ConfigError(
            f"--batch-sizes {sizes[-1]}: {panel.dataset} has only {images:,} training images: "
            "choose smaller batch sizes"
        )
    rates: List[float] = []
    for index, size in enumerate(sizes):
        # start between the rate of the linear rule and the rate of the previous size
        scaled_rate = rates[-1] * math.sqrt(size / sizes[index - 1]) if rates else panel.first_rate
        first_rate = RATE_FACTOR ** round(math.log(scaled_rate, RATE_FACTOR))
        rates.append(_tune_rate(name, size, first_rate, options, sweep))
    points = [_final_training_settings(name, size, rate) for size, rate in zip(sizes, rates)]
    measurements = sweep.run(points, range(options.seeds), label=f"{name}: seeds")
    return [
        SizeTrials(size, rate, point["limit"], _steps_per_epoch(panel, size), trials)
        for size, rate, point, trials in zip(sizes, rates, points, measurements)
    ]


def _final_training_settings(name: str, size: int, rate: float) -> Dict[str, Any]:
    """Return the settings of the runs with the tuned ``rate``. ``name``: the workload."""
    panel = PANELS[name]
    train_eval_steps = {panel.equal_steps, panel.equal_epochs * _steps_per_epoch(panel, size)}
    point = {"panel": name, "size": size, "rate": rate, "limit": step_limit(panel, size)}
    return {**point, "thorough": sorted(train_eval_steps)}


def _steps_per_epoch(panel: Panel, size: int) -> int:
    return math.ceil(_training_images(panel) / size)


def _training_images(panel: Panel) -> int:
    from gluonlab.study.short_training import read_dataset

    return len(read_dataset(panel.dataset).train)


def step_limit(panel: Panel, size: int) -> int:
    """Return the number of steps after which a run is stopped if it has not reached the target."""
    return max(10, min(panel.max_steps, panel.max_images // size))


def _tune_rate(name: str, size: int, first_rate: float, options: BatchSizeOptions, sweep: Sweep) -> float:
    """Return the learning rate with the fewest steps to the target (the median over some seeds).

    The search tries higher rates than ``first_rate``, and then lower rates. Each rate differs from
    the previous rate by a factor of RATE_FACTOR. The search in one direction ends when PATIENCE
    rates in a row are no better than the best rate. If no rate reaches the target, the rate with
    the highest accuracy is returned.
    """
    best_rate, fewest_steps, best_accuracy = first_rate, math.inf, -1.0
    for factor in (RATE_FACTOR, 1 / RATE_FACTOR):
        rate, failures = first_rate if factor > 1 else first_rate * factor, 0
        while failures < (PATIENCE if fewest_steps < math.inf else PATIENCE_WITHOUT_TARGET):
            max_steps = step_limit(PANELS[name], size)
            point = {"panel": name, "size": size, "rate": rate}
            point["limit"] = max_steps if fewest_steps == math.inf else int(fewest_steps)
            [trials] = sweep.run([point], range(options.tuning_seeds), label=f"{name}: learning rate")
            size_trials = SizeTrials(size, rate, max_steps, 1, trials)
            steps: float = median(size_trials.steps_to_target)
            if (steps, -size_trials.best_accuracy) < (fewest_steps, -best_accuracy):
                best_rate, fewest_steps, best_accuracy = rate, steps, size_trials.best_accuracy
                failures = 0
            else:
                failures += 1
            rate *= factor
    return best_rate


def analyze_panel(name: str, sizes: List[SizeTrials]) -> PanelFindings:
    """Return the findings from a workload's measurements."""
    rows = [_size_row(PANELS[name], trials) for trials in sizes]
    return analyze_regimes(rows, [trials.steps_to_target for trials in sizes])


def _size_row(panel: Panel, trials: SizeTrials) -> SizeRow:
    """Return the results of one batch size, as medians over the seeds."""
    compared_steps = {STEPS: panel.equal_steps, EPOCHS: panel.equal_epochs * trials.steps_per_epoch}
    return SizeRow(
        trials.size, trials.rate, median_estimate(trials.steps_to_target),
        median_estimate([steps / trials.steps_per_epoch for steps in trials.steps_to_target]),
        median_estimate(trials.seconds_to_target),
        {unit: _median_errors(trials, steps) for unit, steps in compared_steps.items()},
        sum(map(math.isfinite, trials.steps_to_target)), len(trials.trials), trials.limit,
        trials.best_accuracy,
    )  # fmt: skip


def _median_errors(trials: SizeTrials, steps: int) -> Optional[Tuple[IntervalEstimate, IntervalEstimate]]:
    """Return median error rates on training and validation images.

    The error rate of a seed whose training diverged is 1.
    """
    pairs = trials.error_rates(steps)
    pairs += [(1.0, 1.0)] * (len(trials.trials) - len(pairs))
    train_error, val_error = (median_estimate(shares) for shares in zip(*pairs))
    return None if train_error is None or val_error is None else (train_error, val_error)


# --- regimes

PERFECT, DIMINISHING, STAGNATION = REGIMES = ("perfect", "diminishing", "stagnation")
PERFECT_EXPONENT, STAGNANT_EXPONENT = 0.75, 0.25


class Regime(NamedTuple):
    """Neighboring batch sizes of one regime, from ``left`` to ``right``."""

    regime: str
    left: float
    right: float


def scaling_exponents(sizes: Sequence[float], steps: Sequence[float]) -> List[float]:
    """Return the exponent ``a`` of ``steps ~ size**-a`` between neighboring sizes.

    The exponent is 1 if training with twice the batch size needs half the steps.
    """
    return [
        math.log(steps_before / steps_after) / math.log(larger / size)
        for size, larger, steps_before, steps_after in zip(sizes, sizes[1:], steps, steps[1:])
    ]


def isotonic_decreasing(values: Sequence[float], weights: Sequence[float]) -> List[float]:
    """Return the nearest sequence, by weighted least squares, that never increases.

    The algorithm is pool adjacent violators: R. Barlow et al., "Statistical inference under order
    restrictions", 1972, section 1.2.
    """
    pools: List[Tuple[float, float, int]] = []  # (mean, total weight, number of values)
    for value, weight in zip(values, weights):
        pool = (value, weight, 1)
        while pools and pools[-1][0] < pool[0]:
            mean, pool_weight, count = pools.pop()
            total = pool_weight + pool[1]
            pool = ((mean * pool_weight + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


def classify_exponent(exponent: float) -> str:
    """Return the regime, such as perfect scaling, for a scaling exponent."""
    if exponent >= PERFECT_EXPONENT:
        return PERFECT
    return STAGNATION if exponent <= STAGNANT_EXPONENT else DIMINISHING


def find_regimes(sizes: Sequence[float], steps: Sequence[float]) -> List[Regime]:
    """Return the regimes, such as perfect scaling, from small batches to large ones.

    ``sizes`` must be in ascending order.

    The scaling exponent between two sizes has more weight if they are farther apart. Raises
    ValueError for fewer than two sizes.
    """
    if len(sizes) < 2:
        raise ValueError("at least two batch sizes are required")
    widths = [math.log(larger / size) for size, larger in zip(sizes, sizes[1:])]
    regimes = list(map(classify_exponent, isotonic_decreasing(scaling_exponents(sizes, steps), widths)))
    ends = [0, *accumulate(regimes.count(regime) for regime in REGIMES)]
    return [
        Regime(regime, sizes[start], sizes[end]) for regime, start, end in zip(REGIMES, ends, ends[1:]) if end > start
    ]


def largest_perfect_size(sizes: Sequence[float], steps: Sequence[float]) -> float:
    """Return the largest size with perfect scaling, or the smallest size if there is none."""
    ends = [regime.right for regime in find_regimes(sizes, steps) if regime.regime == PERFECT]
    return ends[0] if ends else sizes[0]


def smallest_stagnant_size(sizes: Sequence[float], steps: Sequence[float]) -> Optional[float]:
    """Return the smallest size in stagnation, or None if larger batches always help."""
    starts = [regime.left for regime in find_regimes(sizes, steps) if regime.regime == STAGNATION]
    return starts[0] if starts else None


def analyze_regimes(rows: Sequence[SizeRow], reached: Sequence[Sequence[float]]) -> PanelFindings:
    """Return a workload's findings. ``reached``: the steps to the target, by row and seed."""
    complete = [(row, steps) for row, steps in zip(rows, reached) if row.steps is not None]
    sizes = [row.size for row, _ in complete]
    steps = [median(seeds) for _, seeds in complete]
    if len(complete) < 2:
        return PanelFindings(list(rows), [], None, None)

    def estimate_size(find_size: Callable[[Sequence[float], Sequence[float]], Optional[float]]) -> IntervalEstimate:
        """Return the size that ``find_size`` finds, with a bootstrap interval over seeds."""

        def size_of_medians(groups: List[List[float]]) -> Optional[float]:
            medians = [median(group) for group in groups]
            return find_size(sizes, medians) if all(map(math.isfinite, medians)) else None

        interval = bootstrap_interval([seeds for _, seeds in complete], size_of_medians)
        return IntervalEstimate(find_size(sizes, steps) or math.nan, interval)

    perfect, stagnant = largest_perfect_size(sizes, steps), smallest_stagnant_size(sizes, steps)
    return PanelFindings(
        list(rows), find_regimes(sizes, steps),
        estimate_size(largest_perfect_size) if perfect > sizes[0] else None,
        None if stagnant is None else estimate_size(smallest_stagnant_size),
    )  # fmt: skip


# --- the report


def build_report(findings: Dict[str, PanelFindings], options: BatchSizeOptions, language: str) -> StudyReport:
    """Return the study's report."""
    texts = read_translations(NAME, language)
    charts: Dict[str, Chart] = {}
    sentences: List[str] = []
    tables: List[Table] = []
    method: List[str] = []
    for name, panel in findings.items():
        panel_report = _PanelReport(name, panel, options, texts)
        charts.update(panel_report.build_charts())
        sentences += panel_report.write_sentences()
        tables.append(panel_report.build_table())
        method.append(panel_report.describe_method())
    settings = {
        texts["settings"]["seeds"]: str(options.seeds),
        texts["settings"]["devices"]: str(options.gpus or 1),
        texts["settings"]["machine"]: cpu_model(),
    }
    method.append(texts["rule"])
    return StudyReport(texts["title"], sentences, charts, tables, method, settings, language)


class _PanelReport:
    """Builds the part of the report that covers one workload."""

    def __init__(self, name: str, findings: PanelFindings, options: BatchSizeOptions, texts: Dict[str, Any]) -> None:
        self.name, self.findings, self.texts = name, findings, texts
        self.panel, self.options = PANELS[name], options
        self.values = {
            "panel": texts["panels"][name],
            "target": f"{options.panels[name]['target']:.1%}".replace(".0%", "%").replace("%", " %"),
            "steps": self.panel.equal_steps,
            "epochs": self.panel.equal_epochs,
        }
        self.reached_rows = [row for row in findings.rows if row.steps is not None]

    def build_charts(self) -> Dict[str, Chart]:
        """Return charts by file name.

        If no batch size reached the target, the charts of steps, epochs and seconds are left out.
        """
        charts = {}
        if self.reached_rows:
            for unit in ("steps", "epochs", "seconds"):
                charts[f"{self.name}-{unit}"] = self._target_chart(unit)
        for unit in (STEPS, EPOCHS):
            charts[f"{self.name}-equal-{unit}"] = self._error_chart(unit)
        return charts

    def _target_chart(self, unit: str) -> Chart:
        """Return a chart of steps, epochs or seconds (``unit``) to the target, by batch size."""
        points = [(row.size, getattr(row, unit)) for row in self.reached_rows]
        curves = [_estimate_curve(self.texts["measured"].format(seeds=self.options.seeds), points, 0)]
        if unit == "steps":
            first, fewest = points[0][0], points[0][1].value
            lowest = min(steps.value for _, steps in points) / 3
            last = min(points[-1][0], first * fewest / lowest)
            ends = [(first, fewest), (last, fewest * first / last)]
            curves.append(Curve(self.texts["ideal"], ends, None, dashed=True))
        regions = [
            Region(self.texts["regimes"][regime.regime], regime.left, regime.right, REGIMES.index(regime.regime))
            for regime in self.findings.regimes
        ]
        notes = [*self._regime_sentences(), self.texts["rule"]] if unit == "steps" else []
        return Chart(
            self.texts["charts"][unit].format(**self.values), self._size_axis(),
            Axis(self.texts["axes"][unit], log=True), curves, regions, notes,
        )  # fmt: skip

    def _size_axis(self) -> Axis:
        sizes = [row.size for row in self.findings.rows]
        return Axis(self.texts["size"], log=True, ticks=sizes)

    def _error_chart(self, unit: str) -> Chart:
        """Return a chart of error rates by batch size, after equal steps or epochs (``unit``)."""
        curves = []
        for position, split_name in enumerate(("val", "train")):
            pairs = [(row.size, row.errors[unit]) for row in self.findings.rows]
            points = [(size, pair[1 - position].scale(100)) for size, pair in pairs if pair is not None]
            curves.append(_estimate_curve(self.texts[split_name], points, position, dashed=split_name == "train"))
        title = self.texts["charts"][f"equal-{unit}"].format(**self.values)
        return Chart(title, self._size_axis(), Axis(self.texts["axes"]["errors"], lowest=0), curves)

    def _regime_sentences(self) -> List[str]:
        """Return sentences about the regimes, such as perfect scaling, and their batch sizes."""
        if not self.findings.regimes:
            return []
        phrases = [
            self.texts["between"].format(
                regime=self.texts["regimes"][regime.regime], left=format_number(regime.left),
                right=format_number(regime.right),
            )
            for regime in self.findings.regimes
        ]  # fmt: skip
        separator = "、" if self.texts["all"].endswith("。") else "; "
        sentences = [self.texts["all"].format(parts=separator.join(phrases), **self.values)]
        for key, estimate in (("perfect", self.findings.perfect), ("stagnant", self.findings.stagnant)):
            if estimate is not None:
                ends = estimate.format_interval(self.texts, format_number)
                sentences.append(self.texts[key].format(size=format_number(estimate.value), ends=ends))
        return sentences

    def write_sentences(self) -> List[str]:
        """Return the sentences that describe the figures."""
        sentences = self._regime_sentences()
        cheapest = min(self.reached_rows, key=lambda row: _required_value(row.epochs), default=None)
        if cheapest is not None and cheapest is not self.reached_rows[-1]:
            last = self.reached_rows[-1]
            few, many = _required_value(cheapest.epochs), _required_value(last.epochs)
            sentences.append(self.texts["cost"].format(
                few=format_number(few), small=format_number(cheapest.size), large=format_number(last.size),
                many=format_number(many), times=f"{many / few:.1f}",
            ))  # fmt: skip
        first, last = self.findings.rows[0], self.findings.rows[-1]
        compared = [row.errors[unit] for unit in (STEPS, EPOCHS) for row in (first, last)]
        if all(errors is not None for errors in compared):
            val_errors = [100 * errors[1].value for errors in compared if errors is not None]
            names = ("step_high", "step_low", "epoch_low", "epoch_high")
            sizes = {"small": format_number(first.size), "large": format_number(last.size)}
            sentences.append(self.texts["equal"].format(**dict(zip(names, val_errors)), **sizes, **self.values))
        return [*sentences, *self._missed_target_sentences()]

    def _missed_target_sentences(self) -> List[str]:
        """Return a sentence for each batch size at which a seed did not reach the target."""
        return [
            self.texts["missed"].format(
                size=format_number(row.size), reached=row.reached, seeds=row.seeds, limit=row.limit,
                rate=format_number(row.rate), best=f"{row.best:.1%}".replace("%", " %"),
                target=self.values["target"],
            )
            for row in self.findings.rows
            if row.reached < row.seeds
        ]  # fmt: skip

    def build_table(self) -> Table:
        """Return the table with a row for each batch size."""
        rows = [self._table_row(row) for row in self.findings.rows]
        return Table(str(self.values["panel"]), self.texts["heads"], rows)

    def _table_row(self, row: SizeRow) -> List[str]:
        """Return the cells of a batch size in the table."""
        never_text = self.texts["never"] if row.steps is None else ""
        return [
            format_number(row.size), format_number(row.rate),
            never_text or format_number(_required_value(row.steps)), _format_range(row.steps),
            "" if never_text else format_number(_required_value(row.epochs)),
            "" if never_text else f"{_required_value(row.seconds):.2f}",
            _format_range(row.seconds),
            *(_format_errors(row.errors[unit]) for unit in (STEPS, EPOCHS)),
        ]  # fmt: skip

    def describe_method(self) -> str:
        """Return text that describes how the workload was measured."""
        momentum = self.panel.momentum
        return str(self.texts["method"].format(
            momentum=self.texts["momentum"].format(momentum=momentum) if momentum else "",
            tuning=self.options.tuning_seeds, seeds=self.options.seeds,
            resolution=self.panel.evaluation_ratio, target=self.values["target"],
        ))  # fmt: skip


def _required_value(value: Optional[IntervalEstimate]) -> float:
    assert value is not None
    return value.value


def _estimate_curve(
    name: str, points: Sequence[Tuple[int, IntervalEstimate]], kind: int, dashed: bool = False
) -> Curve:
    """Return a curve of estimates and their intervals. ``points``: (batch size, estimate)."""
    coordinates = [(float(size), estimate.value) for size, estimate in points]
    return Curve(name, coordinates, kind, [estimate.ends for _, estimate in points], dashed)


def _format_range(value: Optional[IntervalEstimate]) -> str:
    return "" if value is None else value.format_range(format_number)


def _format_errors(pair: Optional[Tuple[IntervalEstimate, IntervalEstimate]]) -> str:
    return "" if pair is None else ", ".join(f"{100 * estimate.value:.1f} %" for estimate in pair)


STUDY = Study(NAME, parse_options, load_options, measure)
