"""``bench allreduce --choose``: what auto sums by, from how many bytes on, and what it misses.

Does not import MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Dict, List, Optional, Protocol, Sequence

from gluonlab.bench.harness.text import microseconds, times
from gluonlab.bench.harness.text import table as as_table
from gluonlab.collectives.auto import NAME as AUTO
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.cost import price
from gluonlab.collectives.for_links import ForLinks, From
from gluonlab.collectives.schedule import Schedule
from gluonlab.plain import in_words

MEANING = (
    "auto sums a buffer by the schedule with the lowest price for its bytes: of all algorithms, in "
    "several numbers of chunks, and of those made for the links. x floor: that price as a multiple "
    "of the floor, below which no schedule can be priced."
)
REGRET = (
    "best: the quickest of what was measured in the same rounds: auto, every algorithm as it is by "
    "default, and those made for the links. "
    "regret: auto's time by the best one's, of medians: {median:.2f} in the median of the sizes, "
    "{worst:.2f} at worst."
)


class Timed(Protocol):
    """A measured row."""

    @property
    def algorithm(self) -> str:
        """The row's name."""

    @property
    def size_bytes(self) -> int:
        """Of the buffer on each device."""

    @property
    def time_s(self) -> float:
        """The median."""


@dataclass(frozen=True)
class Choice:
    """What sums ``size_bytes``, its price, and the floor.

    ``time_s``, ``best``, ``best_s``: where it was measured, its time, and the quickest row.
    """

    size_bytes: int
    schedule: Schedule
    priced_s: float
    floor_s: float
    time_s: Optional[float] = None
    best: Optional[str] = None
    best_s: Optional[float] = None

    @property
    def regret(self) -> Optional[float]:
        """The chosen one's time by the best one's; 1 is no regret."""
        return self.time_s / self.best_s if self.time_s and self.best_s else None

    def as_json(self) -> Dict[str, Any]:
        """What --json prints of it."""
        return {
            "size_bytes": self.size_bytes,
            **_schedule_as_json(self.schedule),
            "predicted_us": self.priced_s * 1e6,
            "floor_us": self.floor_s * 1e6,
            "time_us": None if self.time_s is None else self.time_s * 1e6,
            "best": self.best,
            "best_us": None if self.best_s is None else self.best_s * 1e6,
            "regret": self.regret,
        }


def choices(made: ForLinks, sizes: Sequence[int], rows: Sequence[Timed] = ()) -> List[Choice]:
    """What auto, whose schedules are ``made``, takes for each size; beside what was measured."""
    floor, found = floor_of(made.topology), []
    for size in sizes:
        schedule = made.cheapest(size)
        priced = (price(schedule, made.topology, size).seconds, floor.seconds(size))
        at_size = {row.algorithm: row.time_s for row in rows if row.size_bytes == size}
        best = min(at_size, key=lambda label: at_size[label]) if at_size else None
        measured = (at_size[AUTO], best, at_size[best]) if best else ()
        found.append(Choice(size, schedule, *priced, *measured))
    return found


def text(made: ForLinks, found: Sequence[Choice]) -> str:
    """The table of choices, then each size, and the regret where there is one."""
    lines = [f"auto on {made.topology.name}, {made.topology.world_size} devices", ""]
    columns = f"{'schedule':<22}{'steps':>6}{'chunks':>8}"
    lines += [f"  {'from':>8}  {columns}", *map(_from, made.table())]
    regrets = [choice.regret for choice in found if choice.regret is not None]
    more = f"{'time us':>9}{'best us':>9}{'regret':>8}  best" if regrets else ""
    heading = f"  {'size':>8}{'price us':>9}{'x floor':>8}{more}"
    notes = [REGRET.format(median=median(regrets), worst=max(regrets))] if regrets else []
    note = [f"{made.topology.name}: {made.topology.note}."] if made.topology.note else []
    return as_table([*lines, "", heading, *map(_line, found)], MEANING, *notes, *note)


def as_json(made: ForLinks, found: Sequence[Choice]) -> Dict[str, Any]:
    """What --json prints of both."""
    table = [
        {"from_bytes": row.size_bytes, **_schedule_as_json(row.schedule)} for row in made.table()
    ]
    return {
        "topology": made.topology.name,
        "world_size": made.topology.world_size,
        "note": made.topology.note,
        "table": table,
        "choices": [choice.as_json() for choice in found],
    }


def _schedule_as_json(schedule: Schedule) -> Dict[str, Any]:
    return {
        "schedule": schedule.name,
        "steps": len(schedule.steps),
        "chunks": schedule.chunks,
    }


def _from(row: From) -> str:
    schedule = row.schedule
    cut = f"{len(schedule.steps):>6}{schedule.chunks:>8}"
    return f"  {in_words(row.size_bytes):>8}  {schedule.name:<22}{cut}"


def _line(choice: Choice) -> str:
    factor = times(choice.priced_s / choice.floor_s if choice.floor_s else None)
    line = f"  {in_words(choice.size_bytes):>8}{microseconds(choice.priced_s):>9}{factor:>8}"
    if choice.regret is None:
        return line
    measured = f"{microseconds(choice.time_s):>9}{microseconds(choice.best_s):>9}"
    return f"{line}{measured}{choice.regret:>8.2f}  {choice.best}"
