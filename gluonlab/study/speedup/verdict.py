"""The verdict on a training: measured, judged, and each advice tried beside what there is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from gluonlab.bench.harness.interval import Estimate, estimates
from gluonlab.bench.harness.machine import Others
from gluonlab.config import TrainConfig
from gluonlab.data.sets.gluon_data import resolve_dataset
from gluonlab.engine.neighbours import own_cores
from gluonlab.engine.semantics import nd_semantics
from gluonlab.parallel.strategy import MakeStrategy
from gluonlab.study.speedup import parts as windows
from gluonlab.study.speedup.advice import candidates
from gluonlab.study.speedup.judge import (
    Cause,
    causes,
    disagreement,
    overheads,
    without_images,
)
from gluonlab.study.speedup.measure import (
    ROUNDS,
    Measured,
    for_several,
    measure,
)
from gluonlab.study.speedup.model import StepModel, model
from gluonlab.study.speedup.parts import PARTS, PASSES, TOGETHER, Parts, parts, singly
from gluonlab.study.speedup.trying import Tried, tried
from gluonlab.timeline.exposed import HOST_TIME, STORE, Categories, categories, exposed
from gluonlab.timeline.phases import BACKWARD, COPY, FORWARD, OTHER, SUM, UPDATE
from gluonlab.timeline.recorder import INPUT
from gluonlab.timeline.shares import Timeline

Say = Callable[[str], None]


class ByTrace(NamedTuple):
    """Shares of a step by the trace, and of each device's time by category.

    ``unseen``: devices of which MXNet's profiler keeps nothing.
    """

    step_s: float
    shares: Dict[str, float]
    categories: Dict[str, Categories]
    unseen: List[str]


@dataclass(frozen=True)
class Verdict:
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
    tried: List[Tried] = field(default_factory=list)

    @property
    def accounted(self) -> float:
        """The share of a step that is known of the device of which least is."""
        return 1 - max((each.unknown for each in self.trace.categories.values()), default=0.0)

    @property
    def advice(self) -> List[Tried]:
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
) -> Verdict:
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


def judged(found: Measured, others: float = 0.0) -> Verdict:
    """The verdict on what was measured, before anything is tried."""
    columns = found.columns()
    found_parts = found.parts()
    count = len(found.devices)

    def solved(each: Parts, one_step: float) -> StepModel:
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
    return Verdict(
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
        cores=own_cores(),
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
