"""``bench pipeline``: price all pipeline schedules, or draw one (--draw).

Nothing is run, and MXNet is not imported.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.bench.harness.measurement_command import Drawing, drawn, number_of_devices
from gluonlab.bench.harness.table_format import table as as_table
from gluonlab.config.option_types import real_number_check, whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.parallel.pipeline.pipeline_cost import Costs, PipelineTimeline, equal_shares, price
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, PipelineSchedule, make_pipeline
from gluonlab.parallel.pipeline.verify_pipeline import peaks
from gluonlab.plain_text import json_text

DEVICES, MICROBATCHES, SEVERAL = 4, 8, 2
MOST = 4096  # microbatches, and stages on each device; each is some instructions
MOST_PRICED = 50_000  # stages x microbatches: some seconds

Asked = Mapping[str, Any]
CostsOf = Callable[[PipelineSchedule], Optional[Costs]]

COLUMNS = (
    "Prices, not measurements: a device computes one thing at a time, and sends while it goes on. "
    "bubble: the share of the devices' time in which they are idle; speed-up: over one device, "
    "if it had the memory. kept: of how many microbatches the fullest device keeps the "
    "activations, those of one stage counted as its part of what lies on the device."
)


def answer(asked: Asked) -> str:
    """The text to print. Raises a UsageError for impossible values."""
    if "draw" in asked:
        if "json" in asked:
            raise ConfigError("--json has no effect with --draw: leave it out")
        return _draw(asked)
    for name in ("out", "language"):
        if name in asked:
            raise ConfigError(f"--{name} is for a drawing: give --draw SCHEDULE, or leave it out")
    return _price(asked)


def _draw(asked: Asked) -> str:
    from gluonlab.parallel.pipeline.render import as_svg, as_text, draw

    name = asked["draw"]
    if name not in SCHEDULES:
        raise ConfigError(unknown("pipeline schedule", name, SCHEDULES))
    schedule, costs_of = _schedule(asked, name), _costs(asked)
    costs = costs_of(schedule)
    if costs is None:
        raise _other_stages(asked, schedule)
    timeline = price(schedule, costs)
    drawing = Drawing(
        text=lambda: as_text(schedule, timeline),
        picture=lambda: as_svg(schedule, timeline),
        page=lambda language: draw(schedule, costs_of, language=language),
    )
    return drawn(drawing, asked.get("out"), asked.get("language"))


def _price(asked: Asked) -> str:
    schedules, costs_of = [_schedule(asked, name) for name in SCHEDULES], _costs(asked)
    rows = []
    for schedule in schedules:
        costs = costs_of(schedule)
        if costs is not None:
            rows.append(_Row(schedule, price(schedule, costs)))
    if not rows:
        raise _other_stages(asked, schedules[0])
    if "json" in asked:
        return json_text({"rows": [row.as_json() for row in rows]})
    return _table(rows)


def _schedule(asked: Asked, name: str) -> PipelineSchedule:
    """The schedule of this name, for as many of everything as was asked for."""
    devices = number_of_devices(asked["devices"]) if "devices" in asked else DEVICES
    up_to = whole_number_check(1, MOST)
    microbatches = up_to("--microbatches", asked.get("microbatches", MICROBATCHES))
    several = SEVERAL if name == "interleaved" else 1
    if "stages_per_device" in asked:
        given = up_to("--stages-per-device", asked["stages_per_device"])
        # with all schedules, it is for the one that knows what to do with several
        several = given if name in ("interleaved", asked.get("draw")) else 1
    if devices * several * microbatches > MOST_PRICED:
        raise ConfigError(
            f"{name} on {devices} devices has {devices * several} stages x {microbatches} "
            f"microbatches: up to {MOST_PRICED} are possible; choose fewer"
        )
    return make_pipeline(name, devices, microbatches, several)


def _costs(asked: Asked) -> CostsOf:
    """Costs of a schedule from --costs; None for one that has another number of stages."""
    if "costs" not in asked:
        return equal_shares
    given = [_parse(part) for part in asked["costs"].split("/")]

    def costs_of(schedule: PipelineSchedule) -> Optional[Costs]:
        parts = given
        if len(given) == 1:  # of each device's share of the network
            each = schedule.stages // schedule.devices
            forward, backward, transfer, update = given[0]
            share = _Given(forward / each, backward / each, transfer, update / each)
            parts = [share] * schedule.stages
        if len(parts) != schedule.stages:
            return None
        forwards, backwards, transfers, updates = zip(*parts)
        return Costs(forwards, backwards, tuple((s, s) for s in transfers[:-1]), updates)

    return costs_of


class _Given(NamedTuple):
    """Seconds of one stage; ``transfer_s``: of a message to or from the next stage."""

    forward_s: float
    backward_s: float
    transfer_s: float = 0.0
    update_s: float = 0.0


def _parse(part: str) -> _Given:
    numbers = part.split(",")
    if not 2 <= len(numbers) <= 4:
        raise ConfigError(
            f"--costs {part}: give the milliseconds of forward and backward, then if you like of a "
            "transfer and an update: 10,20 or 10,20,0.5,1"
        )
    computing, others = real_number_check(0, 1e9, above_minimum=True), real_number_check(0, 1e9)
    checks = (computing, computing, others, others)
    return _Given(*(check("--costs", text.strip()) / 1e3 for check, text in zip(checks, numbers)))


def _other_stages(asked: Asked, schedule: PipelineSchedule) -> ConfigError:
    given = len(asked["costs"].split("/"))
    return ConfigError(
        f"--costs gives those of {given} stages, and {schedule.name} has {schedule.stages}: give "
        "one for each stage, or one for all"
    )


class _Row(NamedTuple):
    schedule: PipelineSchedule
    timeline: PipelineTimeline

    @property
    def each(self) -> int:
        """Stages on each device."""
        return self.schedule.stages // self.schedule.devices

    @property
    def speed_up(self) -> float:
        return self.schedule.devices * (1 - self.timeline.bubble)

    @property
    def kept(self) -> float:
        """Microbatches' activations on the fullest device, of all that lies there."""
        most = max(kept.microbatches for of in self.timeline.kept for kept in of)
        return most / self.each

    def as_json(self) -> Dict[str, Any]:
        return {
            "schedule": self.schedule.name,
            "devices": self.schedule.devices,
            "stages": self.schedule.stages,
            "microbatches": self.schedule.microbatches,
            "seconds": self.timeline.seconds,
            "bubble": self.timeline.bubble,
            "bubbles": list(self.timeline.bubbles),
            "speed_up": self.speed_up,
            "kept": self.kept,
            "kept_by_stage": list(peaks(self.schedule)),
        }


def _table(rows: Sequence[_Row]) -> str:
    first = rows[0].schedule
    several = f"{first.devices} device{'s' * (first.devices > 1)}"
    lines: List[str] = [
        f"{several}, {first.microbatches} microbatches",
        f"{'schedule':<14}{'stages':>8}{'time ms':>12}{'bubble':>9}{'speed-up':>11}{'kept':>8}",
    ]
    for row in rows:
        timeline = row.timeline
        lines.append(
            f"{row.schedule.name:<14}{row.schedule.stages:>8}{timeline.seconds * 1e3:>12,.4g}"
            f"{timeline.bubble:>9.1%}{row.speed_up:>10.2f}x{row.kept:>8.3g}"
        )
    return as_table(lines, COLUMNS)
