"""Diagnoses why training on several devices is not faster, and which settings help.

`diagnose` works in four steps:

1. Measure a training step part by part.
2. Find the causes that slow the step down, such as input or the sums of gradients.
3. Compute the smallest batch size at which several devices are faster than one.
4. Try settings that might help. Only settings that are measurably faster are recommended.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.confidence_interval import Estimate, estimate_intervals
from gluonlab.bench.harness.interleaved_rounds import TimedCall, time_interleaved
from gluonlab.bench.harness.machine_info import OtherProcessLoad
from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.from_gluon_datasets import resolve_dataset
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import UsageError
from gluonlab.host.resources import release_free_memory
from gluonlab.parallel.strategy import MakeStrategy
from gluonlab.study.speedup import step_breakdown as windows
from gluonlab.study.speedup.measure_step import (
    BLOCK_S,
    ROUNDS,
    MeasuredTraining,
    StepMeasurement,
    TrainingFacts,
    measure_training_step,
    set_one_thread_per_device,
    single_device_config,
)
from gluonlab.study.speedup.step_breakdown import (
    JOINT_PARTS,
    PARTS,
    PASSES,
    StepParts,
    compute_parts,
    single_device_seconds,
)
from gluonlab.timeline.exposed_time import HOST_TIME, STORE, TimeShares, exposed_seconds, time_shares
from gluonlab.timeline.timeline import BACKWARD, COPY, FORWARD, INPUT, OTHER, SUM, UPDATE, Timeline

# Causes: time of a step that is not computing on its images. The names INPUT, SUM and UPDATE come
# from the timeline. WAITING: within sums, devices wait. STRAGGLER: devices wait for the slowest
# one. CORES: CPU devices share too few cores. FEW: fixed costs, for which a batch is too small.
HOST, WAITING, STRAGGLER, CORES, FEW = "host", "waiting", "straggler", "cores", "few"
NOTHING = "nothing"
CAUSES = (INPUT, HOST, SUM, WAITING, UPDATE, STRAGGLER, CORES, FEW)

# Shares of a step:
MIN_CAUSE_SHARE = 0.2  # smaller causes are not reported
MIN_JOINT_SHARE = 0.4  # the same for all fixed costs together
MIN_LOWER_BOUND = 0.1  # a cause is not reported if the interval of its share starts lower
AGREEMENT_TOLERANCE = 0.1  # allowed difference between two measurements of a part
MIN_ACCOUNTED_SHARE = 0.95  # share that the trace must explain for each device
BATCH_FACTOR = 4  # size of a larger batch that is tried, divided by the present size
TRIED_PREFETCH = 8  # prefetched batches that are tried
MAX_CANDIDATES = 3
SHARDED = "sharded-optimizer"
ADVICE_ROUNDS = 11
PrintLine = Callable[[str], None]


class Cause(NamedTuple):
    """A bottleneck: its name, and the fraction of a step that it takes.

    Attributes:
        device: Index of the slowest device, if the cause is STRAGGLER.
        together: Whether the fraction covers all `image_independent_seconds` together, because no
            single part is large.
        singles: Seconds that each device takes alone, if the cause is STRAGGLER.
    """

    name: str
    share: float
    device: Optional[int] = None
    together: bool = False
    singles: Sequence[float] = ()


def overhead_seconds(breakdown: StepParts) -> Dict[str, float]:
    """Return the seconds per step that each cause of slow training costs.

    FEW excludes the fixed costs that are due to the straggler or to shared cores, so that no time
    counts twice.
    """
    passes = breakdown.passes
    straggler = min(breakdown.straggler, passes)
    shared = min(breakdown.shared, passes - straggler)
    unshared_fraction = 1 - shared / passes if passes else 0.0
    few = min(max(0.0, breakdown.fixed - straggler) * unshared_fraction, passes - straggler - shared)
    return {
        INPUT: breakdown.input, HOST: breakdown.host, SUM: breakdown.sum,
        WAITING: breakdown.waiting, UPDATE: breakdown.update, STRAGGLER: straggler, CORES: shared,
        FEW: few,
    }  # fmt: skip


def image_independent_seconds(overheads: Mapping[str, float]) -> float:
    """Return the total seconds of the causes that do not depend on the number of images."""
    return sum(overheads[name] for name in (HOST, SUM, UPDATE, FEW))


def find_causes(
    breakdown: StepParts, lowest: Optional[Mapping[str, float]] = None, singles: Sequence[float] = ()
) -> List[Cause]:
    """Return the causes that take at least MIN_CAUSE_SHARE of a step, the largest first.

    If no cause is that large, but `image_independent_seconds` are at least MIN_JOINT_SHARE of a
    step, the cause is FEW: too few images. An empty list means that the step is efficient.

    Args:
        breakdown: The measured parts of a step.
        lowest: The lower confidence bound of each cause's fraction of a step.
        singles: Seconds that each device takes alone. The slowest device is the straggler.
    """
    overheads = overhead_seconds(breakdown)
    causes = [
        Cause(name, overheads[name] / breakdown.step, _slowest_device(singles), singles=tuple(singles))
        if name == STRAGGLER
        else Cause(name, overheads[name] / breakdown.step)
        for name in CAUSES
        if overheads[name] >= MIN_CAUSE_SHARE * breakdown.step and (lowest is None or lowest[name] >= MIN_LOWER_BOUND)
    ]
    together = image_independent_seconds(overheads) / breakdown.step
    if not causes and together >= MIN_JOINT_SHARE:
        causes.append(Cause(FEW, together, together=True))
    return sorted(causes, key=lambda cause: -cause.share)


def _slowest_device(singles: Sequence[float]) -> Optional[int]:
    return max(range(len(singles)), key=singles.__getitem__) if singles else None


def find_disagreements(
    first: Mapping[str, float], second: Mapping[str, float], joint: bool = False
) -> Dict[str, Tuple[float, float]]:
    """Return the parts whose two measured fractions differ by more than AGREEMENT_TOLERANCE.

    The result contains both fractions for each such part. Sum and waiting count as one part.

    Args:
        first: Fraction of a step that each part takes, according to one measurement.
        second: The same fractions, according to another measurement.
        joint: Whether the update counts as part of the sum, because the kvstore updates the
            parameters.
    """
    merged = (SUM, WAITING, UPDATE) if joint else (SUM, WAITING)
    groups = [merged, *((name,) for name in first if name not in merged)]
    shares = {names[0]: (sum(first[name] for name in names), sum(second[name] for name in names)) for names in groups}
    return {name: pair for name, pair in shares.items() if abs(pair[0] - pair[1]) > AGREEMENT_TOLERANCE}


# --- from which batch, and up to which network, several devices are faster


class LinearStepTime(NamedTuple):
    """A linear model of how many seconds a step takes: ``fixed + per_image * images``.

    ``images`` is the number of images per device.
    """

    fixed: float
    per_image: float

    def seconds(self, images: float) -> float:
        """Return how many seconds a step takes."""
        return self.fixed + self.per_image * images


class StepModel(NamedTuple):
    """Models of how long a step takes on one device, and on several devices.

    Attributes:
        one: Model of one device.
        several: Model of several devices.
        devices: Number of devices.
        images: Images per step on each device.
        batches: The batch of all devices divided by the batch of one device. This is the number of
            copies of the network. With --global-batch-size, it is 1, because one device would
            compute all images.
        moved: Seconds for sum, waiting and update, which grow with the size of the gradients.
        update: Seconds for the update, which training on one device also needs.
    """

    one: LinearStepTime
    several: LinearStepTime
    devices: int
    images: float
    batches: float
    moved: float
    update: float

    def speed_up(self, images: float) -> float:
        """Return the speedup: images/s of all devices, divided by the images/s of one device.

        ``images``: images per step on each device.
        """
        of_one = self.one.seconds(images * self.devices / self.batches)
        return self.batches * of_one / self.several.seconds(images)

    def break_even_images(self, speed_up: float = 1.0) -> Optional[float]:
        """Return the smallest number of images per device with a speedup of at least ``speed_up``.

        0 means that any batch suffices. None means that no batch is large enough.
        """
        # Solve speed_up * several.seconds(x) <= batches * one.seconds(x * devices / batches).
        n, s = self.devices, speed_up
        missing = s * self.several.fixed - self.batches * self.one.fixed
        gained = n * self.one.per_image - s * self.several.per_image
        if gained <= 0:
            return 0.0 if missing <= 0 == gained else None
        return max(0.0, missing / gained)

    def break_even_gradient_factor(self) -> Optional[float]:
        """Return the factor by which gradients can grow before all devices are no faster than one.

        None means that there is no limit.
        """
        n = self.batches
        of_one = self.one.seconds(self.images * self.devices / n)
        # seconds for which all devices could sum and update before they are as slow as one
        spare_seconds = n * (of_one - self.update) - (self.several.seconds(self.images) - self.moved)
        # seconds that are added when the gradients grow by their present size
        added_seconds = self.moved - n * self.update
        return None if added_seconds <= 0 else max(0.0, spare_seconds / added_seconds)


def fit_step_model(breakdown: StepParts, one_step: float, devices: int, images: int, images_of_one: int) -> StepModel:
    """Return a `StepModel` of the time per step by number of images, fitted to a measured step.

    Args:
        breakdown: Measured parts of a step on all devices.
        one_step: Seconds per step on one device.
        devices: Number of devices.
        images: Images per step on all devices together.
        images_of_one: Images per step on one device.
    """
    images_each = images / devices
    passes = breakdown.passes
    slope = max(0.0, passes - breakdown.fixed) / images_each
    unshared_fraction = max(0.0, passes - breakdown.shared) / passes if passes else 1.0
    per_image = slope + breakdown.input / images_each
    slope_of_one = min(slope * unshared_fraction + breakdown.input / images, one_step / images_of_one)
    return StepModel(
        one=LinearStepTime(one_step - slope_of_one * images_of_one, slope_of_one),
        several=LinearStepTime(max(0.0, breakdown.step - per_image * images_each), per_image),
        devices=devices,
        images=images_each,
        batches=images / images_of_one,
        moved=breakdown.sum + breakdown.waiting + breakdown.update,
        update=min(breakdown.update, one_step),
    )


# --- what might help


class Candidate(NamedTuple):
    """Settings to try.

    ``images_per_copy``: images for each copy of the network, if this number changes.
    """

    settings: Dict[str, Any]
    images_per_copy: Optional[int] = None

    @property
    def option_text(self) -> str:
        """Return the settings as options, such as ``--kvstore ring``."""
        return " ".join(f"{option_name(name)} {value}" for name, value in self.settings.items() if value is not None)


def choose_candidates(causes: Sequence[Cause], facts: TrainingFacts) -> List[Candidate]:
    """Return up to MAX_CANDIDATES settings to try.

    The first candidates of all causes come first, followed by the second candidates of all causes.
    """
    candidates_by_cause = [list(_candidates_for_cause(cause, facts)) for cause in causes]
    chosen: List[Candidate] = []
    for position in range(max(map(len, candidates_by_cause), default=0)):
        for candidates_of_cause in candidates_by_cause:
            if position < len(candidates_of_cause) and candidates_of_cause[position] not in chosen:
                chosen.append(candidates_of_cause[position])
    return chosen[:MAX_CANDIDATES]


def _candidates_for_cause(cause: Cause, facts: TrainingFacts) -> Iterator[Candidate]:
    """Yield settings that might reduce a cause, the most promising first."""
    # SHARDED shards the optimizer ("sharded-optimizer"); "sharded" is another kvstore.
    if cause.name == INPUT:
        yield from _input_setting_candidates(facts)
        return
    if cause.name in (SUM, UPDATE) and facts.kvstore != SHARDED:
        yield Candidate({"kvstore": SHARDED})
    if cause.name in (SUM, WAITING) and facts.kvstore != "device":
        yield Candidate({"kvstore": "device"})
    if cause.name in (HOST, FEW) and facts.microbatches:
        yield Candidate({"microbatches": None if facts.microbatches <= BATCH_FACTOR else
                         facts.microbatches // BATCH_FACTOR, "microbatch_size": None})  # fmt: skip
    if cause.name == STRAGGLER and cause.device is not None:
        if len(cause.singles) == len(facts.shares):
            yield Candidate({"device_weights": weights_by_speed(facts.shares, cause.singles)})
        other_devices = [name for position, name in enumerate(facts.devices) if position != cause.device]
        yield _device_candidate(other_devices)
    if cause.name == CORES and facts.is_cpu and len(facts.devices) > facts.cores:
        yield _device_candidate(list(facts.devices)[: facts.cores])
    if cause.name in (HOST, SUM, UPDATE, FEW, WAITING):
        yield from _larger_batch_candidates(facts)
    if cause.name == SUM and facts.kvstore != "sharded":
        yield Candidate({"kvstore": "sharded"})


def _device_candidate(devices: Sequence[str]) -> Candidate:
    return Candidate({"devices": ",".join(devices), "gpus": None, "device_weights": None})


def weights_by_speed(images: Sequence[int], seconds: Sequence[float]) -> str:
    """Return a value for --device-weights in proportion to the speeds of the devices.

    A device's speed is its ``images`` divided by its ``seconds``.
    """
    speeds = [count / elapsed for count, elapsed in zip(images, seconds)]
    return ",".join(f"{speed / min(speeds):.1f}".replace(".0", "") for speed in speeds)


def _larger_batch_candidates(facts: TrainingFacts) -> Iterator[Candidate]:
    """Yield a candidate with a larger batch if the data set has enough images."""
    images_per_copy = min(BATCH_FACTOR * facts.images_per_copy, facts.max_images_per_copy)
    if images_per_copy > facts.images_per_copy:
        images = images_per_copy * facts.copies if facts.batch_option == "global_batch_size" else images_per_copy
        yield Candidate({facts.batch_option: images}, images_per_copy)


def _input_setting_candidates(facts: TrainingFacts) -> Iterator[Candidate]:
    """Yield candidates whose settings may speed up reading images."""
    data = facts.data_bytes
    if data is not None and facts.resident_bytes < data <= facts.free_bytes // 4:
        yield Candidate({"device_cache_bytes": data})
    if facts.decoders is not None:
        yield Candidate({"workers": 2 * facts.decoders})
    if facts.prefetch < TRIED_PREFETCH:
        yield Candidate({"prefetch": TRIED_PREFETCH})


@dataclass(frozen=True)
class TriedAdvice:
    """A candidate and its measured gain.

    Attributes:
        candidate: The settings.
        gain: Images/s with the candidate, divided by images/s with the present settings.
        speed_up: Speedup of all devices over one device, if the candidate changes the batch.
        expected: The speedup predicted by `StepModel`, if the candidate changes the batch.
        reason: Why the candidate could not be tried.
    """

    candidate: Candidate
    gain: Optional[Estimate] = None
    speed_up: Optional[Estimate] = None
    expected: Optional[float] = None
    reason: Optional[str] = None

    @property
    def is_advised(self) -> bool:
        """Return whether the whole confidence interval of the gain is above 1."""
        return self.gain is not None and self.gain.lowest > 1.0


def try_candidate(
    config: TrainConfig,
    measurement: StepMeasurement,
    step_model: StepModel,
    candidate: Candidate,
    strategy: Optional[MakeStrategy],
) -> TriedAdvice:
    """Compare steps with the candidate's settings and steps with the present settings.

    The two kinds of steps alternate.
    """
    try:
        advised = config.replace(**candidate.settings)
        with ExitStack() as stack:
            trainings = {"present": _open_training(config, measurement.dataset, strategy, stack)}
            trainings["advised"] = _open_training(advised, measurement.dataset, strategy, stack)
            if candidate.images_per_copy is not None:
                single = single_device_config(advised, trainings["advised"])
                trainings["one"] = _open_training(single, measurement.dataset, strategy, stack)
            calls: Dict[str, TimedCall] = {name: training.step_window() for name, training in trainings.items()}
            seconds = time_interleaved(calls, ADVICE_ROUNDS, block_s=BLOCK_S)
            images = {name: training.images for name, training in trainings.items()}
    except UsageError as error:
        return TriedAdvice(candidate, reason=str(error))
    finally:
        release_free_memory()
    rates = {name: [images[name] / elapsed_s for elapsed_s in values] for name, values in seconds.items()}
    gain = _ratio_estimate(rates["advised"], rates["present"])
    if candidate.images_per_copy is None:
        return TriedAdvice(candidate, gain)
    speed_up = _ratio_estimate(rates["advised"], rates["one"])
    # StepModel counts images per device, and a candidate counts images per copy of the network.
    images_per_device = candidate.images_per_copy * measurement.facts.copies / len(measurement.devices)
    return TriedAdvice(candidate, gain, speed_up, step_model.speed_up(images_per_device))


def _open_training(
    config: TrainConfig, dataset: Dataset, strategy: Optional[MakeStrategy], stack: ExitStack
) -> MeasuredTraining:
    """Return a `MeasuredTraining`, which is closed when ``stack`` exits."""
    training = MeasuredTraining(config, dataset, strategy)
    stack.callback(training.close)
    return training


def _ratio_estimate(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    return estimate_intervals({"ratio": [a / b for a, b in zip(numerators, denominators)]}, dict)["ratio"]


# --- the diagnosis


class TraceShares(NamedTuple):
    """Measurements from MXNet's trace.

    Attributes:
        step_s: Seconds per step.
        shares: Fraction of a step that each part takes.
        categories: For each device, the fraction of its time in each category.
        unseen: Devices that MXNet's profiler does not record.
    """

    step_s: float
    shares: Dict[str, float]
    categories: Dict[str, TimeShares]
    unseen: List[str]


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`. An `Estimate` is a value with its confidence interval.

    - ``images``, ``images_of_one``: images per step on all devices, and on one device.
    - ``efficiency``: the speedup divided by the number of devices.
    - ``shares``, ``overheads``: fractions of a step, for each part and for each cause.
    - ``parts_total``: the sum of all parts, as a fraction of a step.
    - ``causes``, ``cause_shares``: the causes, largest first, and their fractions of a step. If
      there are no causes, the step is efficient.
    - ``disagreements``: parts for which the measurement and the trace differ.
    - ``break_even``: the number of images per device at which all devices become faster than one;
      infinite if no batch is large enough.
    - ``copies``: number of copies of the network on the devices.
    - ``host_waits``: whether the host waits for its devices within a step.
    - ``store_updates``: whether the kvstore updates the parameters.
    - ``threads``, ``cores``: threads of all devices, and cores that this process may use.
    - ``other_busy_cores``: cores that other processes kept busy.
    """

    devices: List[str]
    images: int
    images_of_one: int
    speed_up: Estimate
    efficiency: Estimate
    step_s: Estimate
    shares: Dict[str, Estimate]
    overheads: Dict[str, Estimate]
    parts_total: Estimate
    causes: List[Cause]
    cause_shares: List[Estimate]
    trace: TraceShares
    disagreements: Dict[str, Tuple[float, float]]
    model: StepModel
    break_even: Estimate
    copies: int
    gradient_bytes: int
    host_waits: bool
    store_updates: bool
    on_cpu: bool
    threads: int
    cores: int
    other_busy_cores: float
    timeline: Timeline = field(repr=False, compare=False)
    tried_advice: List[TriedAdvice] = field(default_factory=list)

    @property
    def accounted_share(self) -> float:
        """Return the smallest fraction of a step, over all devices, that the trace explains."""
        return 1 - max((categories.unknown for categories in self.trace.categories.values()), default=0.0)

    @property
    def advice(self) -> List[TriedAdvice]:
        """Return the candidates that helped, the best first."""
        helpful = [advice for advice in self.tried_advice if advice.is_advised]
        return sorted(helpful, key=lambda advice: -(advice.gain.value if advice.gain else 0.0))

    @property
    def largest_gradient_bytes(self) -> Optional[int]:
        """Return the size of the gradients at which all devices are only as fast as one.

        None means that there is no limit.
        """
        factor = self.model.break_even_gradient_factor()
        return None if factor is None else int(factor * self.gradient_bytes)

    def to_dict(self) -> Dict[str, Any]:
        """Return the diagnosis as plain values for --json. Shares are fractions of a step."""
        return {
            "devices": self.devices,
            "images": self.images,
            "images_of_one": self.images_of_one,
            "speed_up": _estimate_to_json(self.speed_up),
            "efficiency": _estimate_to_json(self.efficiency),
            "step_seconds": _estimate_to_json(self.step_s),
            "parts": {name: _estimate_to_json(item) for name, item in self.shares.items()},
            "parts_together": _estimate_to_json(self.parts_total),
            "causes": [
                {**cause._asdict(), "share": _estimate_to_json(share)}
                for cause, share in zip(self.causes, self.cause_shares)
            ],
            "overheads": {name: _estimate_to_json(item) for name, item in self.overheads.items()},
            "trace": {
                "step_seconds": self.trace.step_s,
                "parts": self.trace.shares,
                "categories": {row: item._asdict() for row, item in self.trace.categories.items()},
                "accounted": self.accounted_share,
                "unseen": self.trace.unseen,
            },
            "disagrees": self.disagreements,
            "copies": self.copies,
            "pays_from_images_per_device": _estimate_to_json(self.break_even),
            "largest_gradient_bytes": self.largest_gradient_bytes,
            "gradient_bytes": self.gradient_bytes,
            "host_waits": self.host_waits,
            "threads": self.threads,
            "cores": self.cores,
            "cores_of_others": round(self.other_busy_cores, 2),
            "tried": [
                {
                    "settings": item.candidate.settings,
                    "option": item.candidate.option_text,
                    "gain": None if item.gain is None else _estimate_to_json(item.gain),
                    "expected_speed_up": item.expected,
                    "speed_up": None if item.speed_up is None else _estimate_to_json(item.speed_up),
                    "given": item.is_advised,
                    "reason": item.reason,
                }
                for item in self.tried_advice
            ],
        }


def _estimate_to_json(estimate: Estimate) -> Dict[str, Optional[float]]:
    """Return an estimate as a dictionary, with None for infinity, which JSON does not have."""
    plain = estimate._asdict()
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


@nd_semantics()
def diagnose(
    config: TrainConfig,
    dataset: Any = None,
    strategy: Optional[MakeStrategy] = None,
    rounds: int = ROUNDS,
    say: PrintLine = lambda line: None,
    try_advice: bool = True,
) -> Diagnosis:
    """Measure training on all devices and on one device, and try settings that might help.

    Args:
        config: The training settings.
        dataset: See `gluonlab.training.loop.train`.
        strategy: See `gluonlab.training.loop.train`.
        rounds: Number of repetitions of each measurement.
        say: A function that is called with each line about the progress.
        try_advice: Whether to try settings.

    Raises:
        UsageError: Training with the config is not possible.
        ConfigError: The config has a single device.
    """
    cpu_meter = OtherProcessLoad()
    config = set_one_thread_per_device(config)
    report_start = partial(say, "measuring the parts of a step")
    measurement = measure_training_step(config, resolve_dataset(dataset), strategy, rounds, on_start=report_start)
    diagnosis = diagnose_measurement(measurement, cpu_meter.busy_cores())
    if not try_advice:
        return diagnosis
    for candidate in choose_candidates(diagnosis.causes, measurement.facts):
        say(f"trying {candidate.option_text}")
        diagnosis.tried_advice.append(try_candidate(config, measurement, diagnosis.model, candidate, strategy))
    return diagnosis


def diagnose_measurement(measurement: StepMeasurement, other_busy_cores: float = 0.0) -> Diagnosis:
    """Return the diagnosis for a measurement, before any advice is tried."""
    differences = measurement.differences_by_round()
    breakdown = measurement.median_parts()
    count = len(measurement.devices)

    def fit_model(item: StepParts, one_step: float) -> StepModel:
        return fit_step_model(item, one_step, count, measurement.images, measurement.images_of_one)

    def compute_numbers(medians: Mapping[str, float]) -> Dict[str, float]:
        """Return the diagnosis's numbers by name. ``medians``: medians of `part_differences`."""
        item = compute_parts(medians, measurement.ratio)
        overheads = overhead_seconds(item)
        pays = fit_model(item, medians[windows.ONE_DEVICE]).break_even_images()
        return {
            **{f"part {name}": getattr(item, name) / item.step for name in _part_names(measurement.passes_apart)},
            **{f"cause {name}": value / item.step for name, value in overheads.items()},
            "together": image_independent_seconds(overheads) / item.step,
            "total": item.parts_total / item.step,
            "step": item.step,
            # break-even images, as a fraction that stays finite if no batch is large enough
            "pays": 0.0 if pays is None else 1 / (1 + pays),
        }

    estimates_by_name = estimate_intervals(
        {**differences, windows.ONE_DEVICE: measurement.rounds[windows.ONE_DEVICE]}, compute_numbers
    )
    rates = [
        measurement.images * single_s / (measurement.images_of_one * step_s)
        for single_s, step_s in zip(measurement.rounds[windows.ONE_DEVICE], measurement.rounds[windows.STEP])
    ]
    speed_up = estimate_intervals({"rate": rates}, dict)["rate"]
    shares = _select_prefix(estimates_by_name, "part ")
    overheads = _select_prefix(estimates_by_name, "cause ")
    singles = single_device_seconds({name: median(values) for name, values in differences.items()})
    trace = compute_trace_shares(measurement.timeline, measurement.passes_apart)
    causes = find_causes(breakdown, {name: item.lowest for name, item in overheads.items()}, singles)
    measured_shares = {name: item.value for name, item in shares.items()}
    return Diagnosis(
        devices=measurement.devices,
        images=measurement.images,
        images_of_one=measurement.images_of_one,
        speed_up=speed_up,
        efficiency=Estimate(*(item / count for item in speed_up)),
        step_s=estimates_by_name["step"],
        shares=shares,
        overheads=overheads,
        parts_total=estimates_by_name["total"],
        causes=causes,
        cause_shares=[estimates_by_name["together"] if item.together else overheads[item.name] for item in causes],
        trace=trace,
        disagreements={}
        if trace.unseen
        else find_disagreements(measured_shares, trace.shares, measurement.store_updates),
        model=fit_model(breakdown, median(measurement.rounds[windows.ONE_DEVICE])),
        break_even=_images_from_fraction(estimates_by_name["pays"]),
        copies=measurement.facts.copies,
        gradient_bytes=measurement.gradient_bytes,
        host_waits=measurement.host_waits,
        store_updates=measurement.store_updates,
        on_cpu=measurement.facts.is_cpu,
        threads=measurement.threads * count,
        cores=cores_per_process(),
        other_busy_cores=other_busy_cores,
        timeline=measurement.timeline,
    )


def _part_names(apart: bool) -> Tuple[str, ...]:
    """Return the names of a step's parts. ``apart``: as for `compute_trace_shares`."""
    return PARTS if apart else JOINT_PARTS


def _images_from_fraction(fraction: Estimate) -> Estimate:
    """Convert an estimate of ``1 / (1 + images)`` to an estimate of ``images``."""
    value, high, low = (1 / value - 1 if value else math.inf for value in fraction)
    return Estimate(value, low, high)


def compute_trace_shares(timeline: Timeline, apart: bool = True) -> TraceShares:
    """Return each part's fraction of a recorded step.

    ``apart``: whether forward and backward are separate parts.
    """
    exposed = exposed_seconds(timeline)
    step = timeline.step_s
    seconds = {
        "input": exposed[INPUT],
        "host": exposed[HOST_TIME] + exposed[OTHER],
        "forward": exposed[FORWARD],
        "backward": exposed[BACKWARD],
        PASSES: exposed[FORWARD] + exposed[BACKWARD],
        "sum": exposed[SUM] + exposed[COPY],
        "waiting": exposed[STORE],
        "update": exposed[UPDATE],
    }
    seen = {span.row for span in timeline.spans}
    rows = [row for row in timeline.rows if row in seen]
    return TraceShares(
        step,
        {name: seconds[name] / step for name in _part_names(apart)},
        {row: time_shares(timeline, row) for row in rows},
        [row for row in timeline.rows if row not in seen],
    )


def _select_prefix(estimates: Mapping[str, Estimate], prefix: str) -> Dict[str, Estimate]:
    return {name[len(prefix) :]: estimate for name, estimate in estimates.items() if name.startswith(prefix)}
