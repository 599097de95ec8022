"""What pictures, pages and texts show of a priced pipeline schedule: times, idle devices, words."""

from __future__ import annotations

import math
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.drawing.words import plural
from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.price import COMPUTE, Event, Kept, Timeline
from gluonlab.parallel.pipeline.render.words import ENGLISH, Words
from gluonlab.parallel.pipeline.schedule import PipelineSchedule

MOST_DEVICES, MOST_COMPUTED = 16, 4096  # what an eye, and a browser, can follow
MOST_STEPS = 200  # of a page
SHADES = 3  # in which stages of one device differ
_NEGLIGIBLE = 1e-9  # of the whole time: the rounding of sums


class Clock(NamedTuple):
    """The unit in which all times of a drawing are shown, and how many of it a second has."""

    unit: str
    per_second: float

    def shown(self, seconds: float) -> float:
        """The time in this unit, without the rounding of sums."""
        return float(f"{seconds * self.per_second:.6g}")


def clock(timeline: Timeline) -> Clock:
    """The largest unit of which the whole is one or more."""
    units = (Clock("s", 1), Clock("ms", 1e3), Clock("\N{MICRO SIGN}s", 1e6))
    return next((c for c in units if timeline.seconds * c.per_second >= 0.9995), units[-1])


def computed(timeline: Timeline, device: int) -> List[Event]:
    """What the device computes, in its order; what takes no time is left out."""
    own = (e for e in timeline.events if e.device == device and e.instruction.op in COMPUTE)
    return [event for event in own if event.end_s > event.begin_s]


def gaps(timeline: Timeline, device: int) -> Iterator[Tuple[float, float]]:
    """(from, to): when the device is idle, in seconds."""
    free = 0.0
    for event in computed(timeline, device):
        yield from _gap(timeline, free, event.begin_s)
        free = event.end_s
    yield from _gap(timeline, free, timeline.seconds)


def _gap(timeline: Timeline, begin: float, end: float) -> Iterator[Tuple[float, float]]:
    if end - begin > timeline.seconds * _NEGLIGIBLE:
        yield begin, end


def ticks(timeline: Timeline) -> List[float]:
    """The times through which a page goes: as far apart as its shortest forward or backward takes.

    They are as far apart all the way, so that a page plays at the speed of the real thing.
    """
    lengths = [event.end_s - event.begin_s for event in timeline.events]
    wanted = [
        length
        for length, event in zip(lengths, timeline.events)
        if event.instruction.op in COMPUTE[:2] and length > 0
    ]
    count = timeline.seconds / min(wanted) if wanted else 0.0
    steps = max(1, math.ceil(min(count, MOST_STEPS) - 1e-6))
    return [timeline.seconds * step / steps for step in range(steps + 1)]


def shade(schedule: PipelineSchedule, stage: int) -> int:
    """How pale a stage is drawn: 0 for the first of its device, and so on."""
    return stage // schedule.devices % SHADES


def most_kept(timeline: Timeline, device: int) -> int:
    """The most microbatches that the device keeps at once, over its stages."""
    return max(kept.microbatches for kept in timeline.kept[device])


def levels(timeline: Timeline, device: int) -> List[Kept]:
    """How many microbatches the device keeps from when on, without what lasts no time."""
    kept, moment = timeline.kept[device], timeline.seconds * _NEGLIGIBLE
    lasting = [now for now, then in zip(kept, kept[1:]) if then.at_s - now.at_s > moment]
    changes: List[Kept] = []
    for now in [*lasting, kept[-1]]:
        if not changes or changes[-1].microbatches != now.microbatches:
            changes.append(now)
    return changes


def percent(share: float) -> str:
    """``27``"""
    return f"{100 * share:.0f}"


def size(schedule: PipelineSchedule, timeline: Timeline, words: Words = ENGLISH) -> str:
    """``4 devices, 4 stages, 8 microbatches, 33 ms, bubble 27%``"""
    counts = (schedule.devices, schedule.stages, schedule.microbatches)
    sizes = [forms[count != 1].format(count) for forms, count in zip(words.sizes, counts)]
    unit = clock(timeline)
    time = f"{unit.shown(timeline.seconds):g} {unit.unit}"
    return words.comma.join([*sizes, time, words.bubble.format(percent(timeline.bubble))])


def description(schedule: PipelineSchedule, words: Words = ENGLISH) -> str:
    """What the schedule of this name does; nothing for one that has none."""
    return words.descriptions.get(schedule.name, "")


def axis(timeline: Timeline, most: int) -> Sequence[float]:
    """Round times, in the clock's unit, at most so many steps apart, for a drawing's axis."""
    whole = clock(timeline).shown(timeline.seconds)
    if not whole:
        return [0.0]
    rough = whole / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10, 20) if n * power >= rough)
    return [float(f"{number * step:.6g}") for number in range(int(whole / step + 1e-6) + 1)]


def computations(schedule: PipelineSchedule) -> int:
    """How many forwards and backwards there are."""
    return 2 * schedule.stages * schedule.microbatches


def drawable(schedule: PipelineSchedule) -> None:
    """Raises ScheduleError for a schedule that is too large for a picture."""
    if schedule.devices > MOST_DEVICES or computations(schedule) > MOST_COMPUTED:
        raise ScheduleError(
            f"{schedule.name} with {plural(schedule.devices, 'device')}, "
            f"{plural(schedule.stages, 'stage')} and {schedule.microbatches} microbatches is too "
            f"large to draw: choose up to {MOST_DEVICES} devices and {MOST_COMPUTED // 2} stages x "
            "microbatches"
        )
