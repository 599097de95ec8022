"""The verdict on a training: measured, judged, and each advice tried beside what there is.

`judge` measures a step part by part, names the causes for which several devices are not faster,
solves from which batch they are, and tries what might help. Nothing is advised before that.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from gluonlab.bench.harness.confidence_interval import Estimate, estimates
from gluonlab.bench.harness.interleaved_rounds import Timed, time_in_turns
from gluonlab.bench.harness.machine_info import Others
from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.gluon_datasets import resolve_dataset
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.engine.np_compatibility import nd_semantics
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
    for_several,
    measure,
    on_one,
)
from gluonlab.study.speedup.step_breakdown import PARTS, PASSES, TOGETHER, StepParts, parts, singly
from gluonlab.timeline.exposed_time import HOST_TIME, STORE, Categories, categories, exposed
from gluonlab.timeline.timeline import BACKWARD, COPY, FORWARD, INPUT, OTHER, SUM, UPDATE, Timeline

# Causes: where the time of a step goes that is no work on its images.
HOST, WAITING, STRAGGLER, CORES, FEW = "host", "waiting", "straggler", "cores", "few"
NOTHING = "nothing"
CAUSES = (INPUT, HOST, SUM, WAITING, UPDATE, STRAGGLER, CORES, FEW)

LEAST = 0.2  # of a step: what takes less is not worth changing
MANY = 0.4  # of a step: what is worth changing together, though no part of it is
SURE = 0.1  # of a step: what may take less is not named
AGREE = 0.1  # of a step: two measurements of a part that differ by no more agree
ACCOUNTED = 0.95  # of a step: what is known of each device is at least that
MORE = 4  # times as many images as now
AHEAD = 8  # batches prepared ahead
MOST = 3  # settings that are tried
SHARDED = "sharded-optimizer"
TRIED_ROUNDS = 11
Say = Callable[[str], None]


class Cause(NamedTuple):
    """``share``: of a step. ``device``: the straggler's position; ``singles``: each device's time.

    ``together``: the share is that of all `without_images`, since no single part is large.
    """

    name: str
    share: float
    device: Optional[int] = None
    together: bool = False
    singles: Sequence[float] = ()


def overheads(found: StepParts) -> Dict[str, float]:
    """Seconds of a step by cause: what is no work on the step's images.

    What a straggler takes is fixed, too, and a device that shares its core is slow in all it does;
    neither is told twice.
    """
    passes = found.passes
    straggler = min(found.straggler, passes)
    shared = min(found.shared, passes - straggler)
    alone = 1 - shared / passes if passes else 0.0
    few = min(max(0.0, found.fixed - straggler) * alone, passes - straggler - shared)
    return {
        INPUT: found.input, HOST: found.host, SUM: found.sum, WAITING: found.waiting,
        UPDATE: found.update, STRAGGLER: straggler, CORES: shared, FEW: few,
    }  # fmt: skip


def without_images(spent: Mapping[str, float]) -> float:
    """Of `overheads`: what no image costs."""
    return sum(spent[name] for name in (HOST, SUM, UPDATE, FEW))


def causes(
    found: StepParts,
    lowest: Optional[Mapping[str, float]] = None,
    singles: Sequence[float] = (),
) -> List[Cause]:
    """What takes LEAST of a step or more, the largest first; none: the step is well spent.

    ``lowest``: the least share of a step that each may have; ``singles``: seconds of each device
    alone, of which the slowest is the straggler. Where none does, but all together what no image
    costs takes MANY of a step, there are too few images.
    """
    spent = overheads(found)
    named = [
        Cause(name, spent[name] / found.step, _slowest(singles), singles=tuple(singles))
        if name == STRAGGLER
        else Cause(name, spent[name] / found.step)
        for name in CAUSES
        if spent[name] >= LEAST * found.step and (lowest is None or lowest[name] >= SURE)
    ]
    together = without_images(spent) / found.step
    if not named and together >= MANY:
        named.append(Cause(FEW, together, together=True))
    return sorted(named, key=lambda cause: -cause.share)


def _slowest(singles: Sequence[float]) -> Optional[int]:
    return max(range(len(singles)), key=singles.__getitem__) if singles else None


def disagreement(
    first: Mapping[str, float], second: Mapping[str, float], joint: bool = False
) -> Dict[str, Tuple[float, float]]:
    """Parts whose shares of a step differ by more than AGREE, with both.

    Both have the same parts. A sum, what it waits for, and with a store that updates (``joint``)
    the update are one.
    """
    as_one = (SUM, WAITING, UPDATE) if joint else (SUM, WAITING)
    groups = [as_one, *((name,) for name in first if name not in as_one)]
    found = {
        names[0]: (sum(first[name] for name in names), sum(second[name] for name in names))
        for names in groups
    }
    return {name: both for name, both in found.items() if abs(both[0] - both[1]) > AGREE}


# --- from which batch, and up to which network, several devices are faster


class LinearStepTime(NamedTuple):
    """Seconds of a step of ``images`` per device: ``fixed + per_image * images``."""

    fixed: float
    per_image: float

    def seconds(self, images: float) -> float:
        """Of a step."""
        return self.fixed + self.per_image * images


class StepModel(NamedTuple):
    """The steps of one device, and of ``devices`` of them with ``images`` each.

    ``batches``: how many batches of one device make one of all: as many as there are copies of the
    network; 1 if one device would have all images, as with --global-batch-size. ``moved``: seconds
    of sum and update, which grow with the network; ``update``: of the update alone, which one
    device has, too.
    """

    one: LinearStepTime
    several: LinearStepTime
    devices: int
    images: float
    batches: float
    moved: float
    update: float

    def speed_up(self, images: float) -> float:
        """Images/s of all devices, with so many images each, over those of one."""
        of_one = self.one.seconds(images * self.devices / self.batches)
        return self.batches * of_one / self.several.seconds(images)

    def pays_from(self, speed_up: float = 1.0) -> Optional[float]:
        """The images per device from which on all batches have this speed-up.

        0: any batch has it; None: no large one has.
        """
        n, s = self.devices, speed_up
        missing = s * self.several.fixed - self.batches * self.one.fixed
        gained = n * self.one.per_image - s * self.several.per_image
        if gained <= 0:
            return 0.0 if missing <= 0 == gained else None
        return max(0.0, missing / gained)

    def largest_network(self) -> Optional[float]:
        """How many times as large gradients may be until all devices are only as fast as one.

        The rest of the step stays; None: that may be as large as they like.
        """
        n = self.batches
        of_one = self.one.seconds(self.images * self.devices / n)
        room = n * (of_one - self.update) - (self.several.seconds(self.images) - self.moved)
        grows = self.moved - n * self.update
        if grows <= 0:
            return None
        return max(0.0, room / grows)


def model(
    found: StepParts, one_step: float, devices: int, images: int, images_of_one: int
) -> StepModel:
    """The model of what was measured; ``images``: of a step of all devices."""
    each = images / devices
    passes = found.passes
    slope = max(0.0, passes - found.fixed) / each
    alone = max(0.0, passes - found.shared) / passes if passes else 1.0
    per_image = slope + found.input / each
    slope_of_one = min(slope * alone + found.input / images, one_step / images_of_one)
    return StepModel(
        one=LinearStepTime(one_step - slope_of_one * images_of_one, slope_of_one),
        several=LinearStepTime(max(0.0, found.step - per_image * each), per_image),
        devices=devices,
        images=each,
        batches=images / images_of_one,
        moved=found.sum + found.waiting + found.update,
        update=min(found.update, one_step),
    )


# --- what might help


class Candidate(NamedTuple):
    """Settings to try. ``each``: images per copy of the network, where they change these."""

    settings: Dict[str, Any]
    each: Optional[int] = None

    @property
    def words(self) -> str:
        """``--kvstore ring``."""
        return " ".join(
            f"{option_name(name)} {value}"
            for name, value in self.settings.items()
            if value is not None
        )


def candidates(causes: Sequence[Cause], facts: TrainingFacts) -> List[Candidate]:
    """Up to MOST, those against the first cause first; none where nothing could help."""
    against = [list(_against(cause, facts)) for cause in causes]
    found: List[Candidate] = []
    for place in range(max(map(len, against), default=0)):
        for one in against:
            if place < len(one) and one[place] not in found:
                found.append(one[place])
    return found[:MOST]


def _against(cause: Cause, facts: TrainingFacts) -> Iterator[Candidate]:
    if cause.name == INPUT:
        yield from _of_input(facts)
        return
    if cause.name in (SUM, UPDATE) and facts.kvstore != SHARDED:
        yield Candidate({"kvstore": SHARDED})
    if cause.name in (SUM, WAITING) and facts.kvstore != "device":
        yield Candidate({"kvstore": "device"})
    if cause.name in (HOST, FEW) and facts.microbatches:
        yield Candidate({"microbatches": None if facts.microbatches <= MORE else
                         facts.microbatches // MORE, "microbatch_size": None})  # fmt: skip
    if cause.name == STRAGGLER and cause.device is not None:
        if len(cause.singles) == len(facts.shares):
            yield Candidate({"device_weights": weights(facts.shares, cause.singles)})
        left = [name for place, name in enumerate(facts.devices) if place != cause.device]
        yield _on(left)
    if cause.name == CORES and facts.is_cpu and len(facts.devices) > facts.cores:
        yield _on(list(facts.devices)[: facts.cores])
    if cause.name in (HOST, SUM, UPDATE, FEW, WAITING):
        yield from _larger(facts)
    if cause.name == SUM and facts.kvstore != "sharded":
        yield Candidate({"kvstore": "sharded"})


def _on(devices: Sequence[str]) -> Candidate:
    return Candidate({"devices": ",".join(devices), "gpus": None, "device_weights": None})


def weights(images: Sequence[int], seconds: Sequence[float]) -> str:
    """--device-weights for devices that compute so many images each in so long: their speeds."""
    speeds = [count / each for count, each in zip(images, seconds)]
    return ",".join(f"{speed / min(speeds):.1f}".replace(".0", "") for speed in speeds)


def _larger(facts: TrainingFacts) -> Iterator[Candidate]:
    """A batch with more images, if the data set has them."""
    each = min(MORE * facts.each, facts.most)
    if each > facts.each:
        images = each * facts.copies if facts.option == "global_batch_size" else each
        yield Candidate({facts.option: images}, each)


def _of_input(facts: TrainingFacts) -> Iterator[Candidate]:
    data = facts.data_bytes
    if data is not None and facts.resident_bytes < data <= facts.free_bytes // 4:
        yield Candidate({"resident_bytes": data})
    if facts.decoders is not None:
        yield Candidate({"decoders": 2 * facts.decoders})
    if facts.prefetch < AHEAD:
        yield Candidate({"prefetch": AHEAD})


@dataclass(frozen=True)
class TriedAdvice:
    """An advice that was tried: images/s over those of the present settings.

    ``speed_up``: of all devices over one, measured where the advice changes the batch, for which
    ``expected`` was solved. ``reason``: why it could not be tried.
    """

    candidate: Candidate
    gain: Optional[Estimate] = None
    speed_up: Optional[Estimate] = None
    expected: Optional[float] = None
    reason: Optional[str] = None

    @property
    def given(self) -> bool:
        """Whether it is an advice: all that its gain may be is one."""
        return self.gain is not None and self.gain.lowest > 1.0


def tried(
    config: TrainConfig,
    found: StepMeasurement,
    solved: StepModel,
    candidate: Candidate,
    strategy: Optional[MakeStrategy],
) -> TriedAdvice:
    """Some steps with the advised settings and with the present ones, in turns."""
    try:
        advised = config.replace(**candidate.settings)
        with ExitStack() as stack:
            ways = {"present": _made(config, found.dataset, strategy, stack)}
            ways["advised"] = _made(advised, found.dataset, strategy, stack)
            if candidate.each is not None:
                one = on_one(advised, ways["advised"])
                ways["one"] = _made(one, found.dataset, strategy, stack)
            calls: Dict[str, Timed] = {name: way.steps() for name, way in ways.items()}
            seconds = time_in_turns(calls, TRIED_ROUNDS, block_s=BLOCK_S)
            images = {name: way.images for name, way in ways.items()}
    except UsageError as error:
        return TriedAdvice(candidate, reason=str(error))
    finally:
        release_free_memory()
    rates = {name: [images[name] / each for each in values] for name, values in seconds.items()}
    gain = _ratio(rates["advised"], rates["present"])
    if candidate.each is None:
        return TriedAdvice(candidate, gain)
    speed_up = _ratio(rates["advised"], rates["one"])
    # the model counts by device, and the advice by copy of the network
    each = candidate.each * found.facts.copies / len(found.devices)
    return TriedAdvice(candidate, gain, speed_up, solved.speed_up(each))


def _made(
    config: TrainConfig,
    dataset: Dataset,
    strategy: Optional[MakeStrategy],
    stack: ExitStack,
) -> MeasuredTraining:
    trained = MeasuredTraining(config, dataset, strategy)
    stack.callback(trained.close)
    return trained


def _ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    return estimates({"ratio": [a / b for a, b in zip(above, below)]}, dict)["ratio"]


# --- the verdict


class ByTrace(NamedTuple):
    """Shares of a step by the trace, and of each device's time by category.

    ``unseen``: devices of which MXNet's profiler keeps nothing.
    """

    step_s: float
    shares: Dict[str, float]
    categories: Dict[str, Categories]
    unseen: List[str]


@dataclass(frozen=True)
class Diagnosis:
    """What `judge` found. ``shares``: of a step, by part and by cause; ``step_s``: seconds.

    ``causes``: the largest first, and ``cause_shares``; none: the step is well spent. ``pays``: the
    images per device from which all devices are faster than one, infinite where no batch is large
    enough. ``copies``: of the network, on the devices. ``disagrees``: parts by which measurement
    and trace differ. ``cores``: those of this process, for ``threads`` of devices;
    ``others``: how many cores other processes kept busy.
    """

    devices: List[str]
    images: int
    images_of_one: int
    speed_up: Estimate
    efficiency: Estimate
    step_s: Estimate
    shares: Dict[str, Estimate]
    spent: Dict[str, Estimate]
    total: Estimate
    causes: List[Cause]
    cause_shares: List[Estimate]
    trace: ByTrace
    disagrees: Dict[str, Tuple[float, float]]
    model: StepModel
    pays: Estimate
    copies: int
    gradient_bytes: int
    waits: bool
    joint: bool
    on_cpu: bool
    threads: int
    cores: int
    others: float
    timeline: Timeline = field(repr=False, compare=False)
    tried: List[TriedAdvice] = field(default_factory=list)

    @property
    def accounted(self) -> float:
        """The share of a step that is known of the device of which least is."""
        return 1 - max((each.unknown for each in self.trace.categories.values()), default=0.0)

    @property
    def advice(self) -> List[TriedAdvice]:
        """What helps, the best first."""
        given = [each for each in self.tried if each.given]
        return sorted(given, key=lambda each: -(each.gain.value if each.gain else 0.0))

    @property
    def largest_gradient_bytes(self) -> Optional[int]:
        """Those of a network with which all devices would be as fast as one; None: any."""
        times = self.model.largest_network()
        return None if times is None else int(times * self.gradient_bytes)

    def to_dict(self) -> Dict[str, Any]:
        """Plain values, for --json; shares are of a step, and numbers have their intervals."""
        return {
            "devices": self.devices,
            "images": self.images,
            "images_of_one": self.images_of_one,
            "speed_up": _plain(self.speed_up),
            "efficiency": _plain(self.efficiency),
            "step_seconds": _plain(self.step_s),
            "parts": {name: _plain(each) for name, each in self.shares.items()},
            "parts_together": _plain(self.total),
            "causes": [
                {**cause._asdict(), "share": _plain(share)}
                for cause, share in zip(self.causes, self.cause_shares)
            ],
            "overheads": {name: _plain(each) for name, each in self.spent.items()},
            "trace": {
                "step_seconds": self.trace.step_s,
                "parts": self.trace.shares,
                "categories": {row: each._asdict() for row, each in self.trace.categories.items()},
                "accounted": self.accounted,
                "unseen": self.trace.unseen,
            },
            "disagrees": self.disagrees,
            "copies": self.copies,
            "pays_from_images_per_device": _plain(self.pays),
            "largest_gradient_bytes": self.largest_gradient_bytes,
            "gradient_bytes": self.gradient_bytes,
            "host_waits": self.waits,
            "threads": self.threads,
            "cores": self.cores,
            "cores_of_others": round(self.others, 2),
            "tried": [
                {
                    "settings": each.candidate.settings,
                    "option": each.candidate.words,
                    "gain": None if each.gain is None else _plain(each.gain),
                    "expected_speed_up": each.expected,
                    "speed_up": None if each.speed_up is None else _plain(each.speed_up),
                    "given": each.given,
                    "reason": each.reason,
                }
                for each in self.tried
            ],
        }  # fmt: skip


def _plain(estimate: Estimate) -> Dict[str, Optional[float]]:
    """JSON has no infinity: None stands for it."""
    plain = estimate._asdict()
    return {name: each if math.isfinite(each) else None for name, each in plain.items()}


@nd_semantics()
def judge(
    config: TrainConfig,
    dataset: Any = None,
    strategy: Optional[MakeStrategy] = None,
    rounds: int = ROUNDS,
    say: Say = lambda line: None,
    try_advice: bool = True,
) -> Diagnosis:
    """Measure the training of ``config`` on its devices and on one, and say what would help.

    ``dataset``, ``strategy``: as for `gluonlab.training.loop.train`. ``say``: gets a line about
    what is measured next. Raises a UsageError for what cannot be trained, and ConfigError for a
    single device.
    """
    others = Others()
    config = for_several(config)
    begins = partial(say, "measuring a step, part by part")
    found = measure(config, resolve_dataset(dataset), strategy, rounds, begins=begins)
    verdict = judged(found, others.cores())
    if not try_advice:
        return verdict
    for candidate in candidates(verdict.causes, found.facts):
        say(f"trying {candidate.words}")
        verdict.tried.append(tried(config, found, verdict.model, candidate, strategy))
    return verdict


def judged(found: StepMeasurement, others: float = 0.0) -> Diagnosis:
    """The verdict on what was measured, before anything is tried."""
    columns = found.columns()
    found_parts = found.parts()
    count = len(found.devices)

    def solved(each: StepParts, one_step: float) -> StepModel:
        return model(each, one_step, count, found.images, found.images_of_one)

    def numbers(medians: Mapping[str, float]) -> Dict[str, float]:
        each = parts(medians, found.ratio)
        spent = overheads(each)
        pays = solved(each, medians[windows.ONE]).pays_from()
        return {
            **{f"part {name}": getattr(each, name) / each.step for name in _names(found.apart)},
            **{f"cause {name}": value / each.step for name, value in spent.items()},
            "together": without_images(spent) / each.step,
            "total": each.total / each.step,
            "step": each.step,
            # of which a mean can be taken where no batch is large enough
            "pays": 0.0 if pays is None else 1 / (1 + pays),
        }

    known = estimates({**columns, windows.ONE: found.rounds[windows.ONE]}, numbers)
    rates = [
        found.images * one / (found.images_of_one * step)
        for one, step in zip(found.rounds[windows.ONE], found.rounds[windows.STEP])
    ]
    speed_up = estimates({"rate": rates}, dict)["rate"]
    shares = _with(known, "part ")
    spent = _with(known, "cause ")
    singles = singly({name: median(values) for name, values in columns.items()})
    trace = by_trace(found.timeline, found.apart)
    named = causes(found_parts, {name: each.lowest for name, each in spent.items()}, singles)
    first = {name: each.value for name, each in shares.items()}
    return Diagnosis(
        devices=found.devices,
        images=found.images,
        images_of_one=found.images_of_one,
        speed_up=speed_up,
        efficiency=Estimate(*(each / count for each in speed_up)),
        step_s=known["step"],
        shares=shares,
        spent=spent,
        total=known["total"],
        causes=named,
        cause_shares=[known["together"] if each.together else spent[each.name] for each in named],
        trace=trace,
        disagrees={} if trace.unseen else disagreement(first, trace.shares, found.joint),
        model=solved(found_parts, median(found.rounds[windows.ONE])),
        pays=_images(known["pays"]),
        copies=found.facts.copies,
        gradient_bytes=found.gradient_bytes,
        waits=found.waits,
        joint=found.joint,
        on_cpu=found.facts.is_cpu,
        threads=found.threads * count,
        cores=cores_per_process(),
        others=others,
        timeline=found.timeline,
    )  # fmt: skip


def _names(apart: bool) -> Tuple[str, ...]:
    """Of the parts of a step."""
    return PARTS if apart else TOGETHER


def _images(found: Estimate) -> Estimate:
    """What ``1 / (1 + images)`` was taken of."""
    value, high, low = (1 / each - 1 if each else math.inf for each in found)
    return Estimate(value, low, high)


def by_trace(timeline: Timeline, apart: bool = True) -> ByTrace:
    """What the trace says of the same parts; ``apart``: forward and backward are two."""
    found = exposed(timeline)
    step = timeline.step_s
    seconds = {
        "input": found[INPUT],
        "host": found[HOST_TIME] + found[OTHER],
        "forward": found[FORWARD],
        "backward": found[BACKWARD],
        PASSES: found[FORWARD] + found[BACKWARD],
        "sum": found[SUM] + found[COPY],
        "waiting": found[STORE],
        "update": found[UPDATE],
    }
    seen = {span.row for span in timeline.spans}
    rows = [row for row in timeline.rows if row in seen]
    return ByTrace(
        step,
        {name: seconds[name] / step for name in _names(apart)},
        {row: categories(timeline, row) for row in rows},
        [row for row in timeline.rows if row not in seen],
    )


def _with(estimates: Mapping[str, Estimate], prefix: str) -> Dict[str, Estimate]:
    return {
        name[len(prefix) :]: each for name, each in estimates.items() if name.startswith(prefix)
    }
