"""Creates an HTML page that animates pipeline schedules.

The templates of the HTML and JavaScript are in template/.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from gluonlab.drawing.page_template import render_page
from gluonlab.drawing.translations import select_language
from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_cost import (
    COMPUTE_OPS,
    Costs,
    Event,
    PipelineTimeline,
    equal_shares,
    predict_timeline,
)
from gluonlab.parallel.pipeline.pipeline_schedule import (
    OPS,
    RECV_BACKWARD,
    RECV_FORWARD,
    SCHEDULES,
    SEND_BACKWARD,
    SEND_FORWARD,
    PipelineSchedule,
    make_pipeline,
)
from gluonlab.parallel.pipeline.render.pipeline_pictures import (
    MAX_DRAWN_PASSES,
    WORDS,
    PipelineTexts,
    TimeUnit,
    axis_ticks,
    check_drawable,
    count_passes,
    format_size,
    idle_gaps,
    max_stashed_microbatches,
    page_times,
    percent,
    schedule_description,
    stashed_levels,
    time_unit,
)

_SCENE = "gluonlab.parallel.pipeline.render"
_CHOICES = {"schedule": "name", "devices": "devices", "microbatches": "microbatches",
            "stages-per-device": "stages_per_device"}  # fmt: skip
# Numbers that the page offers in addition to the requested ones.
DEVICES, MICROBATCHES = (2, 4, 8), (4, 8, 16)
# Schedules that the page offers with several stages on each device, and their number.
STAGES_PER_DEVICE = {"interleaved": 2}

# A schedule with its estimated times.
PricedSchedule = Tuple[PipelineSchedule, PipelineTimeline]
CostsOf = Callable[[PipelineSchedule], Optional[Costs]]


def as_page(priced: Iterable[PricedSchedule], start: int = 0, *, language: str = "en") -> str:
    """Return an HTML page that animates the schedules ``priced``, starting with ``priced[start]``.

    Every forward, backward and update that takes time is drawn. The attributes ``data-op``,
    ``data-stage``, ``data-microbatch``, ``data-begin`` and ``data-end`` contain the results of
    `predict_timeline`.

    Raises:
        ScheduleError: A schedule is too large to draw, or ``priced`` has no index ``start``.
        ConfigError: ``language`` is not in WORDS.
    """
    words, chosen = select_language(WORDS, language), list(priced)
    if not 0 <= start < len(chosen):
        raise ScheduleError(f"start={start}: must be the index of a schedule, from 0 to {len(chosen) - 1}")
    for schedule, _ in chosen:
        check_drawable(schedule)
    data = [_scene_data(schedule, timeline, words) for schedule, timeline in chosen]
    return render_page(_SCENE, _CHOICES, data, start, words, language)


def draw(asked: PipelineSchedule, costs: CostsOf = equal_shares, *, language: str = "en") -> str:
    """Return a page that animates ``asked``, and lets readers choose other schedules and sizes.

    ``costs`` returns the costs of a schedule, or None to leave the schedule out. Raises
    ScheduleError for schedules that are too large to draw, and ConfigError for an unknown language.
    """
    select_language(WORDS, language)
    check_drawable(asked)
    schedules = [asked, *(other for other in _selectable_schedules(asked) if other != asked)]
    known = [(schedule, costs(schedule)) for schedule in sorted(schedules, key=_sort_key)]
    priced = [(schedule, predict_timeline(schedule, its)) for schedule, its in known if its is not None]
    start = [schedule for schedule, _ in priced].index(asked)
    return as_page(priced, start, language=language)


def _selectable_schedules(requested: PipelineSchedule) -> List[PipelineSchedule]:
    """Return the schedules that readers can select: small schedules, and the requested size."""
    stages_per_device = requested.stages // requested.devices
    requested_size = requested.devices, requested.microbatches
    sizes = {requested_size, *itertools.product(DEVICES, MICROBATCHES)}
    choices = {(name, *size, STAGES_PER_DEVICE.get(name, 1)) for name in SCHEDULES for size in sizes}
    if stages_per_device > 1:
        choices |= {(name, *requested_size, stages_per_device) for name in STAGES_PER_DEVICE}
    schedules = (make_pipeline(*choice) for choice in choices)
    return [schedule for schedule in schedules if count_passes(schedule) <= MAX_DRAWN_PASSES]


def _sort_key(schedule: PipelineSchedule) -> Tuple[int, int, int, int]:
    """Return the key by which the page sorts schedules: name, devices, microbatches and stages."""
    names = [*SCHEDULES]
    name = names.index(schedule.name) if schedule.name in names else len(names)
    return name, schedule.devices, schedule.microbatches, schedule.stages


def _scene_data(schedule: PipelineSchedule, timeline: PipelineTimeline, words: PipelineTexts) -> Dict[str, Any]:
    """Return the data of a schedule for template/scene.js. Times are in the unit of `time_unit`."""
    unit, devices = time_unit(timeline), range(schedule.devices)
    return {
        "name": schedule.name,
        "devices": schedule.devices,
        "microbatches": schedule.microbatches,
        "stages_per_device": schedule.stages // schedule.devices,
        "stages": schedule.stages,
        "size": format_size(schedule, timeline, words),
        "description": schedule_description(schedule, words),
        "unit": unit.unit,
        "ticks": [unit.convert(time_s) for time_s in page_times(timeline)],
        "axis": [axis_ticks(timeline, max_steps) for max_steps in (16, 6)],
        "events": [_event_data(event, unit) for event in timeline.events if _is_shown(event)],
        "idle": [
            [[unit.convert(begin), unit.convert(end)] for begin, end in idle_gaps(timeline, device)]
            for device in devices
        ],
        "kept": [[[unit.convert(at), count] for at, count in stashed_levels(timeline, d)] for d in devices],
        "most": [max_stashed_microbatches(timeline, device) for device in devices],
        "bubbles": [percent(bubble) for bubble in timeline.bubbles],
    }


def _is_shown(event: Event) -> bool:
    """Return whether the page shows an event: work or waiting that takes time, or any message."""
    op = event.instruction.op
    takes_time = event.end_s > event.begin_s
    return op in (SEND_FORWARD, SEND_BACKWARD) or (takes_time and op in (*COMPUTE_OPS, RECV_FORWARD, RECV_BACKWARD))


def _event_data(event: Event, unit: TimeUnit) -> Tuple[int, int, int, float, float]:
    """Return an event for template/scene.js: (index of the op, stage, microbatch, begin, end)."""
    op, stage, microbatch = event.instruction
    begin, end = unit.convert(event.begin_s), unit.convert(event.end_s)
    return OPS.index(op), stage, microbatch, begin, end
