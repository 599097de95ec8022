"""Prices of allreduces: by size, by ranks, of schedules that are sought, and of auto's choices.

Nothing is run, and MXNet is not imported.
"""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, DefaultDict, Dict, List, Optional, Protocol, Sequence, Tuple

from tqdm import tqdm

from gluonlab.bench.allreduce.candidate_schedules import (
    NamedSchedule,
    make_plans,
    synthesised_label,
)
from gluonlab.bench.harness.table_format import WIDTH, microseconds, times
from gluonlab.bench.harness.table_format import table as as_table
from gluonlab.collectives.cost_model import Price, price, prices
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import MOST_HOSTS, Topology, make_topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule, synthesise
from gluonlab.collectives.topology_aware import AUTO, ForLinks, From
from gluonlab.collectives.topology_file import with_schedules
from gluonlab.config.option_types import whole_number_check
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.errors import ConfigError, ScheduleError
from gluonlab.files.atomic_files import new_file
from gluonlab.plain_text import format_size

COLUMNS = (
    "Prices, not measurements: each message costs its latency, "
    "and its bytes on every link of its route; "
    "messages share links, and a barrier ends each step. "
    "algbw: size / time; busbw: algbw * 2(n-1)/n for n devices; both in GB/s, 10^9 bytes. "
    "x floor: the price as a multiple of the floor, below which no schedule can be priced: by the "
    "messages in turn, the bytes on all links, and the additions. "
    "bottleneck: the link that the steps wait for longest. *: the lowest of several."
)
SHORTLY = (
    "The lowest price at each size, and how many times the floor it is, below which no schedule "
    "can be priced. --all shows every algorithm at every size, and what the columns mean."
)
NUMBERS = f"  {'algorithm':<25}{'time us':>12}{'algbw':>8}{'busbw':>8}{'x floor':>9}"
HEADING = f"{NUMBERS}  bottleneck"
ADDING = "additions"


@dataclass(frozen=True)
class PricedRow:
    """A schedule's price at a size, and the floor under all schedules.

    ``bottleneck``: the link that its steps wait for longest.
    """

    algorithm: str
    price: Price
    bottleneck: str
    floor_s: float
    time_s: ClassVar[None] = None  # a row that is not measured, in a picture
    limit_s: ClassVar[None] = None

    @property
    def size_bytes(self) -> int:
        """The size of the buffer on each device, in bytes."""
        return int(self.price.size_bytes)

    @property
    def predicted_s(self) -> float:
        """Seconds of the allreduce."""
        return self.price.seconds

    @property
    def times_floor(self) -> Optional[float]:
        """The price by the floor; None where nothing is to be done."""
        return self.price.seconds / self.floor_s if self.floor_s else None

    def bandwidths(self) -> List[Optional[float]]:
        """algbw and busbw in GB/s; None where nothing is sent."""
        values = (self.price.algbw / 1e9, self.price.busbw / 1e9)
        return [value if math.isfinite(value) else None for value in values]

    def as_json(self) -> Dict[str, Any]:
        """Return the row as --json prints it; bandwidths in GB/s, as in the table."""
        algbw, busbw = self.bandwidths()
        return {
            "algorithm": self.algorithm,
            "size_bytes": self.price.size_bytes,
            "time_us": self.price.seconds * 1e6,
            "algbw": algbw,
            "busbw": busbw,
            "floor_us": self.floor_s * 1e6,
            "times_floor": self.times_floor,
            "bottleneck": self.bottleneck,
        }


def simulate(
    topology: Topology, plans: Sequence[NamedSchedule], sizes: Sequence[int]
) -> List[PricedRow]:
    """Price every schedule at every size, in bytes."""
    floor = floor_of(topology)
    by_plan = [
        [PricedRow(plan.label, each, bottleneck(each), floor.seconds(each.size_bytes))
         for each in _prices(plan, topology, sizes)]
        for plan in plans
    ]  # fmt: skip
    return [row for of_size in zip(*by_plan) for row in of_size]


def _prices(plan: NamedSchedule, topology: Topology, sizes: Sequence[int]) -> List[Price]:
    if plan.by_size is None:
        return prices(plan.schedule, topology, sizes)
    return [price(plan.schedule_for(size), topology, size) for size in sizes]


def bottleneck(priced: Price) -> str:
    """The link that the steps wait for longest, in all; ``additions`` where these take longer.

    Empty where nothing is sent.
    """
    waiting_s: DefaultDict[str, float] = defaultdict(float)
    for step in priced.steps:
        waiting_s[step.bottleneck] += step.transfer_s
        waiting_s[ADDING] += step.reduce_s
    return max(waiting_s, key=lambda name: waiting_s[name], default="")


def price_table(rows: Sequence[PricedRow], topology: Topology, notes: Sequence[str] = ()) -> str:
    """The rows as text, then what they mean, and ``notes``."""
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size B':>15}", HEADING]
    for size, same_size in groupby(rows, key=lambda row: row.size_bytes):
        same = list(same_size)
        lines += ["", f"{size:>15,}  {format_size(size)}", *priced_lines(same)]
    return as_table(lines, COLUMNS, *notes, *_said_of(topology))


def cheapest(rows: Sequence[PricedRow], topology: Topology) -> str:
    """A line for each size: the row of the lowest price, the first of several, on one screen."""
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size':>9}{NUMBERS}"]
    for size, same_size in groupby(rows, key=lambda row: row.size_bytes):
        lowest = min(same_size, key=lambda row: row.predicted_s)
        lines.append(f"{format_size(size):>9}{_numbers(lowest)}")
    return as_table(lines, SHORTLY)


def _said_of(topology: Topology) -> List[str]:
    """Its note, which a file need not have."""
    return [f"{topology.name}: {topology.note}."] if topology.note else []


def priced_lines(rows: Sequence[PricedRow]) -> List[str]:
    """Rows that have one floor, the cheapest of several marked, and below them that."""
    lowest = min(row.predicted_s for row in rows) if len(rows) > 1 else None
    lines = [_line(row, "*" if row.predicted_s == lowest else "") for row in rows]
    return [*lines, f"  {'(floor)':<25}{microseconds(rows[0].floor_s):>12}"]


def _line(row: PricedRow, mark: str) -> str:
    line = f"{_numbers(row, mark)}  "
    return (line + textwrap.shorten(row.bottleneck, WIDTH - len(line), placeholder="...")).rstrip()


def _numbers(row: PricedRow, mark: str = "") -> str:
    """The columns of HEADING but the last."""
    cells = ("-" if value is None else f"{value:.2f}" for value in row.bandwidths())
    columns = "".join(f"{cell:>8}" for cell in cells)
    name_and_time = f"{mark:<2}{row.algorithm:<25}{microseconds(row.predicted_s):>12}"
    return f"{name_and_time}{columns}{times(row.times_floor):>9}"


# --- --hosts: against ranks

FACTOR = 2


def parse_hosts(text: str) -> List[int]:
    """``1:128``, by factors of two, or ``1,3,8``. Raises ConfigError."""
    option, found = "--hosts", set()
    count = whole_number_check(1, MOST_HOSTS)
    for part in text.split(","):
        first, colon, last = part.partition(":")
        hosts, end = count(option, first), count(option, last if colon else first)
        if end < hosts:
            raise ConfigError(f"{option} {text}: write the smaller number first, {last}:{first}")
        while hosts <= end:
            found.add(hosts)
            hosts *= FACTOR
    return sorted(found)


def price_hosts(
    machine: str, hosts: Sequence[int], names: Optional[Sequence[str]], size: int
) -> Tuple[List[PricedRow], Topology]:
    """The rows of each number of hosts, and the topology of the last. Says how far it is."""
    rows: List[PricedRow] = []
    with tqdm(hosts, unit="topology", file=sys.stderr, disable=None, leave=False) as each:
        for count in each:
            topology = make_topology(machine if count == 1 else f"{machine}*{count}")
            rows += simulate(topology, _plans(names, topology), [size])
    if not rows:
        raise ConfigError(
            f"--algorithms {','.join(names or [])}: there are none for so many hosts of {machine}: "
            "give others, or fewer --hosts"
        )
    return rows, topology


def _plans(names: Optional[Sequence[str]], topology: Topology) -> List[NamedSchedule]:
    """Select the names that exist for so many hosts."""
    plans: List[NamedSchedule] = []
    for each in [None] if names is None else [[name] for name in names]:
        with suppress(ScheduleError):
            plans += make_plans(each, topology.world_size, topology=topology)
    return plans


def ranks_table(rows: Sequence[PricedRow], topology: Topology) -> str:
    """The rows below a line for each number of ranks."""
    size = format_size(rows[0].size_bytes)
    lines = [f"{size} on each device, hosts like those of {topology.name}", "", HEADING]
    for ranks, of_ranks in groupby(rows, key=lambda row: row.price.world_size):
        lines += ["", f"{ranks:>6} ranks", *priced_lines(list(of_ranks))]
    return as_table(lines, COLUMNS, *_said_of(topology))


# --- --synthesise: schedules that are sought

SECONDS = 60  # for each number of steps
ROUNDS_AND_BOUND = (
    "rounds: of the busiest link, summed over the steps, for chunks of one part in n of the buffer "
    "on n devices; bound: below which no schedule of as many steps can have rounds, if it uses the "
    "fast links alone, each for one message in a step, and sums up every chunk on a tree before it "
    "copies it; proved optimal: the rounds are the bound."
)


def seek(
    topology: Topology, seconds: int, workers: int, out: Optional[str]
) -> List[SynthesizedSchedule]:
    """The front of ``topology``; written with it to the new file ``out``, if given.

    Says on standard error what is being tried. Raises ConfigError without OR-tools.
    """
    try:
        import ortools  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"--synthesise needs OR-tools, which is not installed: {pip_install_command('synthesis')}"
        ) from None
    began = time.monotonic()
    with tqdm(bar_format="{desc} [{elapsed}]", file=sys.stderr, disable=None) as bar:
        found = synthesise(topology, seconds, workers, bar.set_description_str)
        bar.set_description_str(f"{len(found)} found in {time.monotonic() - began:.0f} s")
    if out is not None:
        with new_file("--out", Path(out)) as temporary:
            Path(temporary).write_text(with_schedules(topology, found), encoding="utf-8")
    return found


def plans_of(front: Sequence[SynthesizedSchedule]) -> List[NamedSchedule]:
    """A row of the table of prices for each."""
    return [NamedSchedule(synthesised_label(found.schedule), found.schedule) for found in front]


def synthesis_text(
    topology: Topology,
    front: Sequence[SynthesizedSchedule],
    sizes: Sequence[int],
    out: Optional[str],
) -> str:
    """What was found, what it costs, and how the file that it was written to is used."""
    lines = [f"  {'steps':>5}{'chunks':>8}{'rounds':>9}{'bound':>9}  status"]
    for found in front:
        numbers = f"{found.rounds:>9.4f}{found.bound:>9.4f}"
        steps = f"  {len(found.schedule.steps):>5}{found.schedule.chunks:>8}"
        lines.append(f"{steps}{numbers}  {status(found)}")
    priced = price_table(simulate(topology, plans_of(front), sizes), topology, [ROUNDS_AND_BOUND])
    run = f"python -m gluonlab.run --gpus {topology.world_size} --kvstore synthesised"
    written = [] if out is None else ["", f"written to {out}:", f"{run} --topology {out}"]
    return "\n".join([*lines, "", priced, *written])


def status(found: SynthesizedSchedule) -> str:
    """``proved optimal``, or the bound that is left."""
    if found.optimal:
        return "proved optimal"
    return f"best found, bound {found.bound:.4f}"


def synthesis_as_json(front: Sequence[SynthesizedSchedule]) -> List[Dict[str, Any]]:
    """What --json prints of them, beside their prices."""
    return [
        {
            "steps": len(found.schedule.steps),
            "chunks": found.schedule.chunks,
            "rounds": found.rounds,
            "bound": found.bound,
            "optimal": found.optimal,
        }
        for found in front
    ]


# --- --choose: what auto sums by

OF_AUTO = (
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


class TimedRow(Protocol):
    """A measured row."""

    @property
    def algorithm(self) -> str:
        """The row's name."""

    @property
    def size_bytes(self) -> int:
        """The size of the buffer on each device, in bytes."""

    @property
    def time_s(self) -> float:
        """The median."""


@dataclass(frozen=True)
class AlgorithmChoice:
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


def choices(
    made: ForLinks, sizes: Sequence[int], rows: Sequence[TimedRow] = ()
) -> List[AlgorithmChoice]:
    """What auto, whose schedules are ``made``, takes for each size; beside what was measured."""
    floor, found = floor_of(made.topology), []
    for size in sizes:
        schedule = made.cheapest(size)
        priced = (price(schedule, made.topology, size).seconds, floor.seconds(size))
        at_size = {row.algorithm: row.time_s for row in rows if row.size_bytes == size}
        best = min(at_size, key=lambda label: at_size[label]) if at_size else None
        measured = (at_size[AUTO], best, at_size[best]) if best else ()
        found.append(AlgorithmChoice(size, schedule, *priced, *measured))
    return found


def choices_text(made: ForLinks, found: Sequence[AlgorithmChoice]) -> str:
    """The table of choices, then each size, and the regret where there is one."""
    lines = [f"auto on {made.topology.name}, {made.topology.world_size} devices", ""]
    columns = f"{'schedule':<22}{'steps':>6}{'chunks':>8}"
    lines += [f"  {'from':>8}  {columns}", *map(_from, made.table())]
    regrets = [choice.regret for choice in found if choice.regret is not None]
    more = f"{'time us':>9}{'best us':>9}{'regret':>8}  best" if regrets else ""
    heading = f"  {'size':>8}{'price us':>9}{'x floor':>8}{more}"
    notes = [REGRET.format(median=median(regrets), worst=max(regrets))] if regrets else []
    notes += _said_of(made.topology)
    return as_table([*lines, "", heading, *map(_choice_line, found)], OF_AUTO, *notes)


def choices_as_json(made: ForLinks, found: Sequence[AlgorithmChoice]) -> Dict[str, Any]:
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
    return f"  {format_size(row.size_bytes):>8}  {schedule.name:<22}{cut}"


def _choice_line(choice: AlgorithmChoice) -> str:
    factor = times(choice.priced_s / choice.floor_s if choice.floor_s else None)
    line = f"  {format_size(choice.size_bytes):>8}{microseconds(choice.priced_s):>9}{factor:>8}"
    if choice.regret is None:
        return line
    measured = f"{microseconds(choice.time_s):>9}{microseconds(choice.best_s):>9}"
    return f"{line}{measured}{choice.regret:>8.2f}  {choice.best}"
