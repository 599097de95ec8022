"""Draws a pipeline schedule with its estimated times: as text for a terminal, and as SVG.

The module also contains the captions of both drawings, in each language. In both drawings, each
device has a row, and time goes to the right. A chart below the rows shows how many microbatches
each device keeps. The HTML page (`pipeline_page.py`) shows the same times, idle devices and
captions.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.drawing.svg_parts import add_group, add_text, finish_document, new_document
from gluonlab.drawing.translations import pluralize, read_scene_words
from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_cost import COMPUTE_OPS, Event, PipelineTimeline, StashedActivations
from gluonlab.parallel.pipeline.pipeline_schedule import BACKWARD, FORWARD, SCHEDULES, UPDATE, PipelineSchedule

Forms = Sequence[str]  # singular and plural


class PipelineTexts(NamedTuple):
    """All texts of the drawings in one language."""

    page: Mapping[str, str]
    shown: Mapping[str, str]
    # for `pipeline_page._scene_data` and the two drawings
    comma: str
    sizes: Sequence[Forms]  # devices, stages, microbatches
    bubble: str
    descriptions: Mapping[str, str]  # of the schedules


# The English descriptions are the first lines of the schedules' docstrings.
_DESCRIPTIONS = {name: (make.__doc__ or "").strip().partition("\n")[0] for name, make in SCHEDULES.items()}
WORDS: Dict[str, PipelineTexts] = {
    language: PipelineTexts(**{"descriptions": _DESCRIPTIONS, **words})
    for language, words in read_scene_words(Path(__file__).parent / "template" / "words.json").items()
}
ENGLISH, JAPANESE = WORDS["en"], WORDS["ja"]


MAX_DEVICES, MAX_DRAWN_PASSES = 16, 4096  # devices and passes that are readable and fast to draw
MAX_STEPS = 200  # steps through which a page moves
SHADES = 3  # for the stages of one device
_NEGLIGIBLE = 1e-9  # share of the whole time that rounding may cause


class TimeUnit(NamedTuple):
    """The unit of all times in a drawing."""

    unit: str
    per_second: float

    def convert(self, seconds: float) -> float:
        """Convert seconds to this unit, rounded to 6 digits to hide rounding errors of sums."""
        return float(f"{seconds * self.per_second:.6g}")


def time_unit(timeline: PipelineTimeline) -> TimeUnit:
    """Return the largest unit of time that is not longer than the step."""
    units = (TimeUnit("s", 1), TimeUnit("ms", 1e3), TimeUnit("\N{MICRO SIGN}s", 1e6))
    return next((c for c in units if timeline.seconds * c.per_second >= 0.9995), units[-1])


def computing_events(timeline: PipelineTimeline, device: int) -> List[Event]:
    """Return a device's forwards, backwards and updates that take time, in order."""
    events = (event for event in timeline.events if event.device == device)
    computing = (event for event in events if event.instruction.op in COMPUTE_OPS)
    return [event for event in computing if event.end_s > event.begin_s]


def idle_gaps(timeline: PipelineTimeline, device: int) -> Iterator[Tuple[float, float]]:
    """Yield (begin, end), in seconds, of each period in which a device is idle."""
    free = 0.0
    for event in computing_events(timeline, device):
        yield from _gap_if_visible(timeline, free, event.begin_s)
        free = event.end_s
    yield from _gap_if_visible(timeline, free, timeline.seconds)


def _gap_if_visible(timeline: PipelineTimeline, begin: float, end: float) -> Iterator[Tuple[float, float]]:
    if end - begin > timeline.seconds * _NEGLIGIBLE:
        yield begin, end


def page_times(timeline: PipelineTimeline) -> List[float]:
    """Return the times, from start to end, through which the animated page steps.

    A step is about as long as the shortest forward or backward, but there are at most MAX_STEPS
    steps. All steps are equally long, so that the page plays at a constant speed.
    """
    pass_lengths = [
        event.end_s - event.begin_s
        for event in timeline.events
        if event.instruction.op in (FORWARD, BACKWARD) and event.end_s > event.begin_s
    ]
    count = timeline.seconds / min(pass_lengths) if pass_lengths else 0.0
    steps = max(1, math.ceil(min(count, MAX_STEPS) - 1e-6))
    return [timeline.seconds * step / steps for step in range(steps + 1)]


def stage_shade(schedule: PipelineSchedule, stage: int) -> int:
    """Return the shade of a stage: 0 for the first stage on its device, 1 for the second, ..."""
    return stage // schedule.devices % SHADES


def max_stashed_microbatches(timeline: PipelineTimeline, device: int) -> int:
    """Return the largest number of microbatches that a device keeps at once."""
    return max(kept.microbatches for kept in timeline.kept[device])


def stashed_levels(timeline: PipelineTimeline, device: int) -> List[StashedActivations]:
    """Return how many microbatches a device keeps, at the start and after each change.

    Numbers that last for zero seconds are omitted.
    """
    kept, moment = timeline.kept[device], timeline.seconds * _NEGLIGIBLE
    lasting = [now for now, then in zip(kept, kept[1:]) if then.at_s - now.at_s > moment]
    changes: List[StashedActivations] = []
    for now in [*lasting, kept[-1]]:
        if not changes or changes[-1].microbatches != now.microbatches:
            changes.append(now)
    return changes


def percent(share: float) -> str:
    """Return a fraction as a percentage, such as "27"."""
    return f"{100 * share:.0f}"


def format_size(schedule: PipelineSchedule, timeline: PipelineTimeline, words: PipelineTexts = ENGLISH) -> str:
    """Return text such as "4 devices, 4 stages, 8 microbatches, 33 ms, bubble 27%"."""
    counts = (schedule.devices, schedule.stages, schedule.microbatches)
    sizes = [forms[count != 1].format(count) for forms, count in zip(words.sizes, counts)]
    unit = time_unit(timeline)
    time = f"{unit.convert(timeline.seconds):g} {unit.unit}"
    return words.comma.join([*sizes, time, words.bubble.format(percent(timeline.bubble))])


def schedule_description(schedule: PipelineSchedule, words: PipelineTexts = ENGLISH) -> str:
    """Return the one-line description of a schedule; "" for an unknown name."""
    return words.descriptions.get(schedule.name, "")


def axis_ticks(timeline: PipelineTimeline, max_steps: int) -> Sequence[float]:
    """Return at most ``max_steps`` + 1 round times for the time axis, in the drawing's unit."""
    whole = time_unit(timeline).convert(timeline.seconds)
    if not whole:
        return [0.0]
    rough = whole / max_steps
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10, 20) if n * power >= rough)
    return [float(f"{number * step:.6g}") for number in range(int(whole / step + 1e-6) + 1)]


def count_passes(schedule: PipelineSchedule) -> int:
    """Return the number of forwards and backwards."""
    return 2 * schedule.stages * schedule.microbatches


def check_drawable(schedule: PipelineSchedule) -> None:
    """Raise ScheduleError if a schedule is too large to draw."""
    if schedule.devices > MAX_DEVICES or count_passes(schedule) > MAX_DRAWN_PASSES:
        raise ScheduleError(
            f"{schedule.name} with {pluralize(schedule.devices, 'device')}, "
            f"{pluralize(schedule.stages, 'stage')} and {schedule.microbatches} microbatches is "
            f"too large to draw: choose at most {MAX_DEVICES} devices, and at most "
            f"{MAX_DRAWN_PASSES // 2} for stages x microbatches"
        )


# As text

MIN_COLUMNS = 40
MAX_COLUMNS = 2000  # columns of all blocks
STAGE_LETTERS = "abcdefghijklmnopqrstuvwxyz"  # for the stages of one device

FILLS = {BACKWARD: "=", UPDATE: "u"}  # forward: "-"
IDLE = "."


def as_text(schedule: PipelineSchedule, timeline: PipelineTimeline, width: int = 80) -> str:
    """Draw each device's work and stashed microbatches over time, as lines of ``width`` characters.

    A long timeline is continued in blocks below, so that the numbers of microbatches stay readable.
    All blocks together have at most 2000 columns. Raises ScheduleError for a width below 40.
    """
    if width < MIN_COLUMNS:
        raise ScheduleError(f"width={width}: must be at least {MIN_COLUMNS} columns for a pipeline")
    heads = [f"{schedule.name}: {format_size(schedule, timeline)}", schedule_description(schedule), ""]
    text = [*heads, _text_legend(schedule, timeline)]
    lines = [part for line in text for part in textwrap.wrap(line, width) or [""]]
    label = len(f"device {schedule.devices - 1}")
    devices, unit = range(schedule.devices), time_unit(timeline)
    scale, room = _text_scale(schedule, timeline, width - label - 2)
    rows = [_device_line(schedule, timeline, device, scale) for device in devices]
    for begin in range(0, len(rows[0]), room):
        end = min(begin + room, len(rows[0]))
        times = [f"{unit.convert(min(c / scale, timeline.seconds)):.4g}" for c in (begin, end)]
        lines += ["", f"from {times[0]} to {times[1]} {unit.unit}"]
        lines += [f"{f'device {device}':<{label}}  {rows[device][begin:end]}" for device in devices]
        for device in devices:
            kept = _stashed_line(timeline, device, scale, range(begin, end))
            lines.append(f"{f'keeps {device}':<{label}}  {kept}".rstrip())
    return "\n".join([*lines, "", *_summary_table(schedule, timeline)])


def _text_legend(schedule: PipelineSchedule, timeline: PipelineTimeline) -> str:
    """Return the line that explains the characters in the drawing."""
    marks = ["0-- microbatch 0 goes forward", "0== backward", ".. idle"]
    ops = {event.instruction.op for device in range(schedule.devices) for event in computing_events(timeline, device)}
    marks += ["uu update"] * (UPDATE in ops)
    several = schedule.stages > schedule.devices
    return f"{', '.join(marks)}." + " a, b: the first and second stage of the device." * several


def _text_scale(schedule: PipelineSchedule, timeline: PipelineTimeline, room: int) -> Tuple[float, int]:
    """Return the drawing's columns per second, and the number of columns in each block.

    A drawing wider than ``room`` columns is continued in blocks below. A single block is enough if
    the shortest forward or backward is wide enough for the number of its microbatch.
    """
    whole = timeline.seconds
    lengths = _pass_lengths(schedule, timeline)
    if not lengths:
        return 1.0 / (whole or 1.0), room
    letters = len(str(schedule.microbatches - 1)) + (schedule.stages > schedule.devices)
    shortest = min(lengths)
    # The shortest pass gets whole columns, so that equal boxes are equally wide and no block cuts
    # one.
    columns = max(letters + 1, int(room / whole * shortest))
    scale = min(columns / shortest, MAX_COLUMNS / whole)
    return scale, room if _column(whole, scale) <= room else max(room - room % columns, 1)


def _pass_lengths(schedule: PipelineSchedule, timeline: PipelineTimeline) -> List[float]:
    """Return the durations of all forwards and backwards that take time, in seconds."""
    events = (event for device in range(schedule.devices) for event in computing_events(timeline, device))
    return [event.end_s - event.begin_s for event in events if event.instruction.op != UPDATE]


def _device_line(schedule: PipelineSchedule, timeline: PipelineTimeline, device: int, scale: float) -> str:
    """Return a line of text that shows a device's passes. ``scale``: columns per second."""
    line = [IDLE] * _column(timeline.seconds, scale)
    for event in computing_events(timeline, device):
        begin, end = _column(event.begin_s, scale), _column(event.end_s, scale)
        line[begin:end] = _pass_text(schedule, event, end - begin)
    return "".join(line)


def _pass_text(schedule: PipelineSchedule, event: Event, columns: int) -> str:
    """Return a forward, backward or update as text of ``columns`` characters."""
    op, stage, microbatch = event.instruction
    fill = FILLS.get(op, "-")
    several = schedule.stages > schedule.devices
    letter = STAGE_LETTERS[stage // schedule.devices % len(STAGE_LETTERS)] if several else ""
    name = "" if op == UPDATE else f"{microbatch}{letter}"
    return (name if len(name) < columns else "").ljust(columns, fill)


def _stashed_line(timeline: PipelineTimeline, device: int, scale: float, columns: range) -> str:
    """Return a line with the number of kept microbatches, at the start and at each change."""
    changes = [(_column(at_s, scale), count) for at_s, count in stashed_levels(timeline, device)]
    initial = [count for column, count in changes if column <= columns.start][-1]
    changes_inside = [(column, count) for column, count in changes if column in columns[1:]]
    line, free = [" "] * len(columns), 0
    for column, count in [(columns.start, initial), *changes_inside]:
        offset, number = column - columns.start, str(count)
        if offset >= free and offset + len(number) <= len(line):
            line[offset : offset + len(number)] = number
            free = offset + len(number) + 1
    return "".join(line)


def _column(seconds: float, scale: float) -> int:
    return int(seconds * scale + 0.5)


def _summary_table(schedule: PipelineSchedule, timeline: PipelineTimeline) -> Iterator[str]:
    """Yield the lines of a table with one row per device.

    The columns are the device's stages, its bubble, and the largest number of microbatches that it
    keeps.
    """
    heads = ("device", "stages", "bubble", "keeps at most")
    rows: List[Iterable[str]] = [heads]
    for device, bubble in enumerate(timeline.bubbles):
        stages = ",".join(map(str, schedule.stages_of(device)))
        kept = f"{max_stashed_microbatches(timeline, device)}"
        rows.append((f"{device}", stages, f"{percent(bubble)}%", kept))
    widths: Tuple[int, ...] = tuple(max(map(len, column)) for column in zip(*rows))
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths))


# As SVG

# All lengths are px.
WIDTH, MAX_CHART_WIDTH, MARGIN, LABEL_WIDTH, RIGHT_MARGIN = 1200, 6000, 32, 96, 30
AXIS_HEIGHT, ROW_HEIGHT, ROW_GAP, STASH_HEIGHT, SECTION_GAP, DIGIT_WIDTH = 30, 36, 12, 30, 40, 7.6

# On white, meaningful parts have a contrast of at least 3 and differ in shape as well as in color;
# numbers have a contrast of 4.5.
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
    "Each row is a device, and time runs to the right. A number is a microbatch that passes "
    "forward or backward through a stage. Hatched areas mean that the device is idle. The "
    "chart below shows for how many microbatches each device keeps activations."
)


class _PipelineLayout:
    """Positions of all parts of the picture. The time axis fills the width."""

    def __init__(self, schedule: PipelineSchedule, timeline: PipelineTimeline) -> None:
        whole = timeline.seconds or 1.0
        lengths = _pass_lengths(schedule, timeline)
        digits = len(str(schedule.microbatches - 1))
        legible = (digits * DIGIT_WIDTH + 3) / min(lengths, default=whole)
        room = WIDTH - 2 * MARGIN - LABEL_WIDTH - RIGHT_MARGIN
        self.scale = max(room / whole, min(legible, MAX_CHART_WIDTH / whole))
        self.whole = whole * self.scale
        self.below = AXIS_HEIGHT + schedule.devices * (ROW_HEIGHT + ROW_GAP) - ROW_GAP + SECTION_GAP
        self.height = self.below + schedule.devices * (STASH_HEIGHT + ROW_GAP)

    def x(self, seconds: float) -> float:
        return round(LABEL_WIDTH + seconds * self.scale, 2)

    def top(self, row: int) -> int:
        return AXIS_HEIGHT + row * (ROW_HEIGHT + ROW_GAP)

    def base(self, row: int) -> int:
        """Return the y position of the baseline in a device's chart of stashed activations."""
        return self.below + row * (STASH_HEIGHT + ROW_GAP) + STASH_HEIGHT


def as_svg(schedule: PipelineSchedule, timeline: PipelineTimeline) -> str:
    """Draw the schedule with its times. Return the text of an SVG file.

    Raises ScheduleError for a schedule that is too large to draw.
    """
    check_drawable(schedule)
    frame = _PipelineLayout(schedule, timeline)
    width = 2 * MARGIN + LABEL_WIDTH + frame.whole + RIGHT_MARGIN
    title = f"{schedule.name}: {format_size(schedule, timeline)}"
    root = new_document(title, [schedule_description(schedule), _HOW_TO_READ], STYLE)
    stripes = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse"}
    hatch = SubElement(SubElement(root, "defs"), "pattern", {"id": "hatch", **stripes})
    SubElement(hatch, "path", {"class": "stripe", "d": "M-1 7L7 -1M-1 1L1 -1M5 7L7 5"})
    y = _draw_heading(root, schedule, timeline, width)
    picture = add_group(root, MARGIN, y)
    _draw_axis(picture, frame, schedule, timeline)
    for row in range(schedule.devices):
        _draw_row(picture, frame, schedule, timeline, row)
        _draw_stashed(picture, frame, timeline, row)
    add_text(picture, LABEL_WIDTH, frame.below - 10, "microbatches kept", "quiet small")
    add_text(picture, LABEL_WIDTH + frame.whole + RIGHT_MARGIN, frame.below - 10, "most", "quiet small end")
    return finish_document(root, round(width), y + frame.height + MARGIN - ROW_GAP)


def _draw_heading(root: Element, schedule: PipelineSchedule, timeline: PipelineTimeline, width: float) -> int:
    """Draw the name, size, description and legend. Return the y position below the legend."""
    add_text(root, MARGIN, 46, schedule.name, "name")
    wrapped = textwrap.wrap(schedule_description(schedule), int((width - 2 * MARGIN) // 7))
    y = 70
    for line in [format_size(schedule, timeline), *wrapped]:
        add_text(root, MARGIN, y, line, "quiet")
        y += 19
    legend, x = add_group(root, MARGIN, y - 4), 0
    several = schedule.stages > schedule.devices
    kinds = [("forward shade-0", "forward"), ("backward shade-0", "backward")]
    kinds += [("forward shade-1", "paler: a device's later stages")] * several
    for kind, label in [*kinds, ("idle", "idle, the bubble")]:
        box = {"x": str(x), "y": "0", "width": "28", "height": "18", "rx": "3"}
        SubElement(legend, "rect", {"class": kind, **box})
        add_text(legend, x + 36, 14, label)
        x += 58 + int(6.5 * len(label))
    return y + 28


def _draw_axis(parent: Element, frame: _PipelineLayout, schedule: PipelineSchedule, timeline: PipelineTimeline) -> None:
    """Draw the times above the picture, with a vertical line at each time."""
    unit, bottom = time_unit(timeline), frame.top(schedule.devices) - ROW_GAP
    add_text(parent, LABEL_WIDTH - 12, 18, unit.unit, "quiet small end")
    for time in axis_ticks(timeline, 16):
        x = frame.x(time / unit.per_second)
        SubElement(parent, "path", {"class": "scale", "d": f"M{x:g} {AXIS_HEIGHT - 4}V{bottom + 3}"})
        add_text(parent, x, 18, f"{time:g}", "quiet small middle")


def _draw_row(
    parent: Element, frame: _PipelineLayout, schedule: PipelineSchedule, timeline: PipelineTimeline, row: int
) -> None:
    """Draw the passes and the idle times of a device."""
    stages, middle = [str(stage) for stage in schedule.stages_of(row)], frame.top(row) + ROW_HEIGHT / 2
    named = f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"
    add_text(parent, LABEL_WIDTH - 8, middle - 2, f"device {row}", "end")
    add_text(parent, LABEL_WIDTH - 8, middle + 12, named, "quiet small end")
    for begin, end in idle_gaps(timeline, row):
        box = _box_attributes(frame, row, (begin, end))
        SubElement(parent, "rect", {"class": "idle", **box})
    for event in computing_events(timeline, row):
        _draw_pass(parent, frame, schedule, event)


def _draw_pass(parent: Element, frame: _PipelineLayout, schedule: PipelineSchedule, event: Event) -> None:
    """Draw a forward, backward or update."""
    op, stage, microbatch = event.instruction
    pale = stage_shade(schedule, stage)
    box = SubElement(parent, "g")
    SubElement(box, "title").text = f"device {event.device}: {event.instruction}"
    kind = f"{op} shade-{pale}" if op in (FORWARD, BACKWARD) else op
    attributes = _box_attributes(frame, event.device, (event.begin_s, event.end_s), air=1)
    SubElement(box, "rect", {"class": kind, "rx": "3", **attributes})
    begin, end = frame.x(event.begin_s), frame.x(event.end_s)
    if op != UPDATE and end - begin >= len(str(microbatch)) * DIGIT_WIDTH:
        y = frame.top(event.device) + ROW_HEIGHT / 2 + 4
        add_text(box, (begin + end) / 2, y, str(microbatch), f"number on-{pale}")


def _box_attributes(frame: _PipelineLayout, row: int, span: Tuple[float, float], air: float = 0.0) -> Dict[str, str]:
    """Return the SVG attributes of a box in a device's row.

    ``span``: (begin, end) in seconds. ``air``: the width to leave empty, half of it on each side.
    """
    begin, end = map(frame.x, span)
    width = max(end - begin - air, 0.5)
    return {"x": f"{begin + air / 2:g}", "y": str(frame.top(row)), "width": f"{width:g}", "height": str(ROW_HEIGHT)}


def _draw_stashed(parent: Element, frame: _PipelineLayout, timeline: PipelineTimeline, row: int) -> None:
    """Draw how many microbatches a device keeps, with the same scale for all devices."""
    rows = range(len(timeline.kept))
    most = max(1, *(max_stashed_microbatches(timeline, device) for device in rows))
    base, line = frame.base(row), f"M{frame.x(0):g} {frame.base(row)}"
    for at_s, microbatches in stashed_levels(timeline, row):
        line += f"H{frame.x(at_s):g}V{base - microbatches / most * STASH_HEIGHT:g}"
    line += f"H{frame.x(timeline.seconds):g}"
    SubElement(parent, "path", {"class": "kept", "d": f"{line}V{base}z"})
    SubElement(parent, "path", {"class": "level", "d": line})
    add_text(parent, LABEL_WIDTH - 8, base - 4, f"device {row}", "quiet small end")
    right = LABEL_WIDTH + frame.whole + RIGHT_MARGIN
    add_text(parent, right, base - 4, str(max_stashed_microbatches(timeline, row)), "small end")
