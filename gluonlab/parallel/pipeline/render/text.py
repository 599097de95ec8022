"""A priced pipeline schedule as text, for a terminal: a line a device, time to the right."""

from __future__ import annotations

import textwrap
from typing import Iterable, Iterator, List, Tuple

from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.price import Event, Timeline
from gluonlab.parallel.pipeline.render.scene import (
    clock,
    computed,
    description,
    levels,
    most_kept,
    percent,
    size,
)
from gluonlab.parallel.pipeline.schedule import BACKWARD, UPDATE, PipelineSchedule

NARROWEST = 40
MOST_COLUMNS = 2000  # of all blocks together
STAGES = "abcdefghijklmnopqrstuvwxyz"  # of one device, in its boxes

FILLS = {BACKWARD: "=", UPDATE: "u"}  # and a forward's "-"
IDLE = "."


def as_text(schedule: PipelineSchedule, timeline: Timeline, width: int = 80) -> str:
    """What every device does when, and how many microbatches it keeps, in lines of ``width``.

    As many blocks stand below each other as time needs, so that the numbers of microbatches can be
    read where that takes no more than 2000 columns. Raises ScheduleError for a width below 40.
    """
    if width < NARROWEST:
        raise ScheduleError(f"a pipeline in {width} columns: give it at least {NARROWEST}")
    heads = [f"{schedule.name}: {size(schedule, timeline)}", description(schedule), ""]
    text = [*heads, _legend(schedule, timeline)]
    lines = [part for line in text for part in textwrap.wrap(line, width) or [""]]
    label = len(f"device {schedule.devices - 1}")
    devices, unit = range(schedule.devices), clock(timeline)
    scale, room = _scale(schedule, timeline, width - label - 2)
    rows = [_line(schedule, timeline, device, scale) for device in devices]
    for begin in range(0, len(rows[0]), room):
        end = min(begin + room, len(rows[0]))
        times = [f"{unit.shown(min(c / scale, timeline.seconds)):.4g}" for c in (begin, end)]
        lines += ["", f"from {times[0]} to {times[1]} {unit.unit}"]
        lines += [f"{f'device {device}':<{label}}  {rows[device][begin:end]}" for device in devices]
        for device in devices:
            kept = _kept(timeline, device, scale, range(begin, end))
            lines.append(f"{f'keeps {device}':<{label}}  {kept}".rstrip())
    return "\n".join([*lines, "", *_table(schedule, timeline)])


def _legend(schedule: PipelineSchedule, timeline: Timeline) -> str:
    marks = ["0-- microbatch 0 goes forward", "0== backward", ".. idle"]
    ops = {
        event.instruction.op
        for device in range(schedule.devices)
        for event in computed(timeline, device)
    }
    marks += ["uu update"] * (UPDATE in ops)
    several = schedule.stages > schedule.devices
    return f"{', '.join(marks)}." + " a, b: the device's first and second stage." * several


def _scale(schedule: PipelineSchedule, timeline: Timeline, room: int) -> Tuple[float, int]:
    """Columns for a second, and how many columns a block has.

    All fits into one block, if the shortest forward or backward then has room for its number.
    """
    whole = timeline.seconds
    lengths = [
        event.end_s - event.begin_s
        for device in range(schedule.devices)
        for event in computed(timeline, device)
        if event.instruction.op != UPDATE
    ]
    if not lengths:
        return 1.0 / (whole or 1.0), room
    letters = len(str(schedule.microbatches - 1)) + (schedule.stages > schedule.devices)
    shortest = min(lengths)
    # whole columns for the shortest, so that equal boxes are equally wide, and no block cuts one
    columns = max(letters + 1, int(room / whole * shortest))
    scale = min(columns / shortest, MOST_COLUMNS / whole)
    return scale, room if _column(whole, scale) <= room else max(room - room % columns, 1)


def _line(schedule: PipelineSchedule, timeline: Timeline, device: int, scale: float) -> str:
    """What the device does in each column."""
    line = [IDLE] * _column(timeline.seconds, scale)
    for event in computed(timeline, device):
        begin, end = _column(event.begin_s, scale), _column(event.end_s, scale)
        line[begin:end] = _box(schedule, event, end - begin)
    return "".join(line)


def _box(schedule: PipelineSchedule, event: Event, columns: int) -> str:
    op, stage, microbatch = event.instruction
    fill = FILLS.get(op, "-")
    several = schedule.stages > schedule.devices
    letter = STAGES[stage // schedule.devices % len(STAGES)] if several else ""
    name = "" if op == UPDATE else f"{microbatch}{letter}"
    return (name if len(name) < columns else "").ljust(columns, fill)


def _kept(timeline: Timeline, device: int, scale: float, columns: range) -> str:
    """How many microbatches the device keeps: at the block's begin, and where that changes."""
    changes = [(_column(at_s, scale), many) for at_s, many in levels(timeline, device)]
    before = [many for column, many in changes if column <= columns.start][-1]
    later = [(column, many) for column, many in changes if column in columns[1:]]
    line, free = [" "] * len(columns), 0
    for column, many in [(columns.start, before), *later]:
        place, number = column - columns.start, str(many)
        if place >= free and place + len(number) <= len(line):
            line[place : place + len(number)] = number
            free = place + len(number) + 1
    return "".join(line)


def _column(seconds: float, scale: float) -> int:
    return int(seconds * scale + 0.5)


def _table(schedule: PipelineSchedule, timeline: Timeline) -> Iterator[str]:
    heads = ("device", "stages", "bubble", "keeps at most")
    rows: List[Iterable[str]] = [heads]
    for device, bubble in enumerate(timeline.bubbles):
        stages = ",".join(map(str, schedule.stages_of(device)))
        kept = f"{most_kept(timeline, device)}"
        rows.append((f"{device}", stages, f"{percent(bubble)}%", kept))
    widths: Tuple[int, ...] = tuple(max(map(len, column)) for column in zip(*rows))
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths))
