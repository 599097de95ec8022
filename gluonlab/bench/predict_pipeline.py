"""``bench pipeline``: predicts how long pipeline schedules take, or draws one (--draw).

No pipeline is run, and MXNet is not imported.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.bench.harness.measurement_command import ScheduleDrawing, count_devices, output_drawing
from gluonlab.bench.harness.table_format import format_table
from gluonlab.config import option_name
from gluonlab.config.option_checks import real_number_check, whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.parallel.pipeline.pipeline_cost import Costs, PipelineTimeline, equal_shares, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, PipelineSchedule, make_pipeline
from gluonlab.parallel.pipeline.verify_pipeline_schedule import peaks
from gluonlab.plain_text import json_text

DEFAULT_DEVICES, DEFAULT_MICROBATCHES, INTERLEAVED_STAGES = 4, 8, 2
MAX_COUNT = 4096  # maximum of microbatches, and of stages on each device
MAX_STAGE_MICROBATCHES = 50_000  # maximum of stages x microbatches, which takes some seconds

CommandOptions = Mapping[str, Any]
CostsOf = Callable[[PipelineSchedule], Optional[Costs]]

COLUMN_NOTES = (
    "Predictions, not measurements: a device computes one task at a time, and sends in the "
    "background. bubble: the fraction of time in which the devices are idle; speed-up: over one "
    "device with enough memory. kept: the largest number of microbatches whose activations a "
    "device keeps; those of one of k stages on a device count 1/k."
)


def pipeline_text(options: CommandOptions) -> str:
    """Return the predicted times of all schedules or, with --draw, a drawing of one schedule.

    Raises a UsageError for invalid values.
    """
    if "draw" in options:
        if "json" in options:
            raise ConfigError("--json has no effect with --draw: omit --json")
        return _draw_schedule(options)
    for name in ("out_file", "language"):
        if name in options:
            option = option_name(name)
            raise ConfigError(f"{option} only applies to drawings: add --draw SCHEDULE, or omit {option}")
    return _predict_all_schedules(options)


def _draw_schedule(options: CommandOptions) -> str:
    """Draw the schedule that --draw names, as text or in the file that --out-file names."""
    from gluonlab.parallel.pipeline.render import as_svg, as_text, draw

    name = options["draw"]
    if name not in SCHEDULES:
        raise ConfigError(unknown("pipeline schedule", name, SCHEDULES))
    schedule, costs_of = _make_schedule(options, name), _parse_costs(options)
    costs = costs_of(schedule)
    if costs is None:
        raise _stage_count_error(options, schedule)
    timeline = predict_timeline(schedule, costs)
    drawing = ScheduleDrawing(
        text=lambda: as_text(schedule, timeline),
        picture=lambda: as_svg(schedule, timeline),
        page=lambda language: draw(schedule, costs_of, language=language),
    )
    return output_drawing(drawing, options.get("out_file"), options.get("language"))


def _predict_all_schedules(options: CommandOptions) -> str:
    """Return the predicted times of all schedules, as a table or as JSON."""
    schedules, costs_of = [_make_schedule(options, name) for name in SCHEDULES], _parse_costs(options)
    rows = []
    for schedule in schedules:
        costs = costs_of(schedule)
        if costs is not None:
            rows.append(_PipelineCostRow(schedule, predict_timeline(schedule, costs)))
    if not rows:
        raise _stage_count_error(options, schedules[0])
    if "json" in options:
        return json_text({"rows": [row.as_json() for row in rows]})
    return _format_costs(rows)


def _make_schedule(options: CommandOptions, name: str) -> PipelineSchedule:
    """Return the schedule ``name`` for the given devices, microbatches and stages per device."""
    devices = count_devices(options["devices"]) if "devices" in options else DEFAULT_DEVICES
    parse_count = whole_number_check(1, MAX_COUNT)
    microbatches = parse_count("--microbatches", options.get("microbatches", DEFAULT_MICROBATCHES))
    stages_per_device = INTERLEAVED_STAGES if name == "interleaved" else 1
    if "stages_per_device" in options:
        requested_stages = parse_count("--stages-per-device", options["stages_per_device"])
        # in the table of all schedules, only interleaved has several stages per device
        stages_per_device = requested_stages if name in ("interleaved", options.get("draw")) else 1
    if devices * stages_per_device * microbatches > MAX_STAGE_MICROBATCHES:
        raise ConfigError(
            f"{name} on {devices} devices has {devices * stages_per_device} stages and "
            f"{microbatches} microbatches, but stages x microbatches must be at most "
            f"{MAX_STAGE_MICROBATCHES}: use fewer stages or microbatches"
        )
    return make_pipeline(name, devices, microbatches, stages_per_device)


def _parse_costs(options: CommandOptions) -> CostsOf:
    """Return a function that maps a schedule to its costs.

    The function returns None for a schedule whose number of stages differs from the number in
    --costs.
    """
    if "costs" not in options:
        return equal_shares
    stage_costs = [_parse_stage_cost(part) for part in options["costs"].split("/")]

    def costs_of(schedule: PipelineSchedule) -> Optional[Costs]:
        """Return the costs of the stages, or None if --costs has a different number of stages."""
        schedule_costs = stage_costs
        if len(stage_costs) == 1:  # the costs of a device, shared equally by its stages
            stages_per_device = schedule.stages // schedule.devices
            forward_s, backward_s, update_s = (stage_costs[0][i] / stages_per_device for i in (0, 1, 3))
            share = _StageCost(forward_s, backward_s, stage_costs[0].transfer_s, update_s)
            schedule_costs = [share] * schedule.stages
        if len(schedule_costs) != schedule.stages:
            return None
        forwards, backwards, transfers, updates = zip(*schedule_costs)
        return Costs(forwards, backwards, tuple((s, s) for s in transfers[:-1]), updates)

    return costs_of


class _StageCost(NamedTuple):
    """Seconds for one stage. ``transfer_s``: seconds for a message to or from the next stage."""

    forward_s: float
    backward_s: float
    transfer_s: float = 0.0
    update_s: float = 0.0


def _parse_stage_cost(part: str) -> _StageCost:
    """Parse a stage's costs in milliseconds, such as ``10,20,0.5,1``."""
    numbers = part.split(",")
    if not 2 <= len(numbers) <= 4:
        raise ConfigError(
            f"--costs {part}: must be 2 to 4 numbers: pass the milliseconds of the forward and backward "
            "pass, and optionally of a transfer and an update, such as 10,20 or 10,20,0.5,1"
        )
    positive, nonnegative = real_number_check(0, 1e9, above_minimum=True), real_number_check(0, 1e9)
    checks = (positive, positive, nonnegative, nonnegative)
    return _StageCost(*(check("--costs", text.strip()) / 1e3 for check, text in zip(checks, numbers)))


def _stage_count_error(options: CommandOptions, schedule: PipelineSchedule) -> ConfigError:
    """Return the error to raise if --costs and the schedule have different numbers of stages."""
    stages = len(options["costs"].split("/"))
    return ConfigError(
        f"--costs describes {stages} stages, but {schedule.name} has {schedule.stages}: pass "
        "costs for each stage, or one for all"
    )


class _PipelineCostRow(NamedTuple):
    """A schedule and its timeline."""

    schedule: PipelineSchedule
    timeline: PipelineTimeline

    @property
    def stages_per_device(self) -> int:
        """Return the number of stages on each device."""
        return self.schedule.stages // self.schedule.devices

    @property
    def speed_up(self) -> float:
        return self.schedule.devices * (1 - self.timeline.bubble)

    @property
    def kept_microbatches(self) -> float:
        """Return the largest number of microbatches whose activations one device keeps at once.

        If a device has k stages, the activations of one stage count as 1/k.
        """
        stage_memories = (stage_memory for device_memory in self.timeline.kept for stage_memory in device_memory)
        return max(stage_memory.microbatches for stage_memory in stage_memories) / self.stages_per_device

    def as_json(self) -> Dict[str, Any]:
        """Return the row in the format of --json."""
        return {
            "schedule": self.schedule.name, "devices": self.schedule.devices,
            "stages": self.schedule.stages, "microbatches": self.schedule.microbatches,
            "seconds": self.timeline.seconds, "bubble": self.timeline.bubble,
            "bubbles": list(self.timeline.bubbles), "speed_up": self.speed_up,
            "kept": self.kept_microbatches, "kept_by_stage": list(peaks(self.schedule)),
        }  # fmt: skip


def _format_costs(rows: Sequence[_PipelineCostRow]) -> str:
    """Return the table of predicted times, with an explanation of its columns."""
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
            f"{timeline.bubble:>9.1%}{row.speed_up:>10.2f}x{row.kept_microbatches:>8.3g}"
        )
    return format_table(lines, COLUMN_NOTES)
