"""A priced pipeline schedule as one SVG picture: rows are devices, time goes to the right.

Below, how many microbatches every device keeps.
"""

from __future__ import annotations

import textwrap
from typing import Dict, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.drawing.svg import document, finished, group, text
from gluonlab.parallel.pipeline.price import Event, Timeline
from gluonlab.parallel.pipeline.render.scene import (
    axis,
    clock,
    computed,
    description,
    drawable,
    gaps,
    levels,
    most_kept,
    shade,
    size,
)
from gluonlab.parallel.pipeline.schedule import BACKWARD, FORWARD, UPDATE, PipelineSchedule

# All lengths are px.
WIDTH, WIDEST, MARGIN, LABELS, RIGHT = 1200, 6000, 32, 96, 30
AXIS, TALL, GAP, LOW, BETWEEN, DIGIT = 30, 36, 12, 30, 40, 7.6

# On white, what carries meaning has a contrast of at least 3 and differs in shape as well as in
# colour; numbers have 4.5.
STYLE = """
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 13px;
  fill: #1c2430 }
.name { font-size: 24px; font-weight: 600 } .small { font-size: 11px } .number { font-size: 12px }
.quiet { fill: #566072 } .paper { fill: #ffffff }
.middle, .number { text-anchor: middle } .end { text-anchor: end }
.forward { stroke: #2c66c9 } .backward { stroke: #c2410c }
.forward.shade-0 { fill: #2c66c9 } .forward.shade-1 { fill: #a9c6f5 }
.forward.shade-2 { fill: #dde9fb }
.backward.shade-0 { fill: #c2410c } .backward.shade-1 { fill: #f7bd9d }
.backward.shade-2 { fill: #fde6da }
.on-0 { fill: #ffffff }
.update { fill: #1b7f4d; stroke: #1b7f4d }
.stripe { fill: none; stroke: #7b8699; stroke-width: 1 } .idle { fill: url(#hatch) }
.scale { stroke: #d8dde6; stroke-width: 1 }
.kept { fill: #6b3fa0; fill-opacity: .22 }
.level { fill: none; stroke: #6b3fa0; stroke-width: 1.6 }
"""
_HOW_TO_READ = (
    "A row a device, time goes to the right. A number is a microbatch, on its way forward or "
    "backward through a stage; hatched, the device is idle. Below: of how many microbatches each "
    "device keeps the activations."
)


class _Frame:
    """Where things are: time shares the width, but the numbers of microbatches can be read."""

    def __init__(self, schedule: PipelineSchedule, timeline: Timeline) -> None:
        whole = timeline.seconds or 1.0
        lengths = [
            event.end_s - event.begin_s
            for device in range(schedule.devices)
            for event in computed(timeline, device)
            if event.instruction.op != UPDATE
        ]
        digits = len(str(schedule.microbatches - 1))
        legible = (digits * DIGIT + 3) / min(lengths, default=whole)
        room = WIDTH - 2 * MARGIN - LABELS - RIGHT
        self.scale = max(room / whole, min(legible, WIDEST / whole))
        self.whole = whole * self.scale
        self.below = AXIS + schedule.devices * (TALL + GAP) - GAP + BETWEEN
        self.height = self.below + schedule.devices * (LOW + GAP)

    def x(self, seconds: float) -> float:
        return round(LABELS + seconds * self.scale, 2)

    def top(self, row: int) -> int:
        return AXIS + row * (TALL + GAP)

    def base(self, row: int) -> int:
        """Of what the device keeps."""
        return self.below + row * (LOW + GAP) + LOW


def as_svg(schedule: PipelineSchedule, timeline: Timeline) -> str:
    """The schedule with its price as an SVG document, complete in itself.

    Raises ScheduleError for more than can be told apart.
    """
    drawable(schedule)
    frame = _Frame(schedule, timeline)
    width = 2 * MARGIN + LABELS + frame.whole + RIGHT
    title = f"{schedule.name}: {size(schedule, timeline)}"
    root = document(title, [description(schedule), _HOW_TO_READ], STYLE)
    stripes = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse"}
    hatch = SubElement(SubElement(root, "defs"), "pattern", {"id": "hatch", **stripes})
    SubElement(hatch, "path", {"class": "stripe", "d": "M-1 7L7 -1M-1 1L1 -1M5 7L7 5"})
    y = _heading(root, schedule, timeline, width)
    picture = group(root, MARGIN, y)
    _axis(picture, frame, schedule, timeline)
    for row in range(schedule.devices):
        _row(picture, frame, schedule, timeline, row)
        _kept(picture, frame, timeline, row)
    text(picture, LABELS, frame.below - 10, "microbatches kept", "quiet small")
    text(picture, LABELS + frame.whole + RIGHT, frame.below - 10, "most", "quiet small end")
    return finished(root, round(width), y + frame.height + MARGIN - GAP)


def _heading(root: Element, schedule: PipelineSchedule, timeline: Timeline, width: float) -> int:
    """Name, size, description and legend; returns where the picture begins."""
    text(root, MARGIN, 46, schedule.name, "name")
    wrapped = textwrap.wrap(description(schedule), int((width - 2 * MARGIN) // 7))
    y = 70
    for line in [size(schedule, timeline), *wrapped]:
        text(root, MARGIN, y, line, "quiet")
        y += 19
    legend, x = group(root, MARGIN, y - 4), 0
    several = schedule.stages > schedule.devices
    kinds = [("forward shade-0", "forward"), ("backward shade-0", "backward")]
    kinds += [("forward shade-1", "paler: a device's later stages")] * several
    for kind, label in [*kinds, ("idle", "idle, the bubble")]:
        place = {"x": str(x), "y": "0", "width": "28", "height": "18", "rx": "3"}
        SubElement(legend, "rect", {"class": kind, **place})
        text(legend, x + 36, 14, label)
        x += 58 + int(6.5 * len(label))
    return y + 28


def _axis(parent: Element, frame: _Frame, schedule: PipelineSchedule, timeline: Timeline) -> None:
    unit, bottom = clock(timeline), frame.top(schedule.devices) - GAP
    text(parent, LABELS - 12, 18, unit.unit, "quiet small end")
    for time in axis(timeline, 16):
        x = frame.x(time / unit.per_second)
        SubElement(parent, "path", {"class": "scale", "d": f"M{x:g} {AXIS - 4}V{bottom + 3}"})
        text(parent, x, 18, f"{time:g}", "quiet small middle")


def _row(
    parent: Element, frame: _Frame, schedule: PipelineSchedule, timeline: Timeline, row: int
) -> None:
    """What the device does."""
    stages, middle = [str(stage) for stage in schedule.stages_of(row)], frame.top(row) + TALL / 2
    named = f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"
    text(parent, LABELS - 8, middle - 2, f"device {row}", "end")
    text(parent, LABELS - 8, middle + 12, named, "quiet small end")
    for begin, end in gaps(timeline, row):
        place = _place(frame, row, (begin, end))
        SubElement(parent, "rect", {"class": "idle", **place})
    for event in computed(timeline, row):
        _work(parent, frame, schedule, event)


def _work(parent: Element, frame: _Frame, schedule: PipelineSchedule, event: Event) -> None:
    op, stage, microbatch = event.instruction
    pale = shade(schedule, stage)
    box = SubElement(parent, "g")
    SubElement(box, "title").text = f"device {event.device}: {event.instruction}"
    kind = f"{op} shade-{pale}" if op in (FORWARD, BACKWARD) else op
    place = _place(frame, event.device, (event.begin_s, event.end_s), air=1)
    SubElement(box, "rect", {"class": kind, "rx": "3", **place})
    begin, end = frame.x(event.begin_s), frame.x(event.end_s)
    if op != UPDATE and end - begin >= len(str(microbatch)) * DIGIT:
        y = frame.top(event.device) + TALL / 2 + 4
        text(box, (begin + end) / 2, y, str(microbatch), f"number on-{pale}")


def _place(frame: _Frame, row: int, span: Tuple[float, float], air: float = 0.0) -> Dict[str, str]:
    """Attributes of a box in the device's row; ``span``: from, to, in seconds."""
    begin, end = map(frame.x, span)
    return {
        "x": f"{begin + air / 2:g}",
        "y": str(frame.top(row)),
        "width": f"{max(end - begin - air, 0.5):g}",
        "height": str(TALL),
    }


def _kept(parent: Element, frame: _Frame, timeline: Timeline, row: int) -> None:
    """How many microbatches the device keeps; the same scale for all."""
    rows = range(len(timeline.kept))
    most = max(1, *(most_kept(timeline, device) for device in rows))
    base, line = frame.base(row), f"M{frame.x(0):g} {frame.base(row)}"
    for at_s, microbatches in levels(timeline, row):
        line += f"H{frame.x(at_s):g}V{base - microbatches / most * LOW:g}"
    line += f"H{frame.x(timeline.seconds):g}"
    SubElement(parent, "path", {"class": "kept", "d": f"{line}V{base}z"})
    SubElement(parent, "path", {"class": "level", "d": line})
    text(parent, LABELS - 8, base - 4, f"device {row}", "quiet small end")
    right = LABELS + frame.whole + RIGHT
    text(parent, right, base - 4, str(most_kept(timeline, row)), "small end")
