"""Prices of allreduces by size and algorithm on another machine; nothing is run.

Does not import MXNet.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, DefaultDict, Dict, List, Optional, Sequence

from gluonlab.bench.allreduce.plans import Plan
from gluonlab.bench.harness.text import WIDTH, microseconds, times
from gluonlab.bench.harness.text import table as as_table
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.cost import Price, price, prices
from gluonlab.collectives.topology import Topology
from gluonlab.plain import in_words

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
        """Of the buffer on each device."""
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
        """What --json prints of the row; bandwidths in GB/s, as in the table."""
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


def simulate(topology: Topology, plans: Sequence[Plan], sizes: Sequence[int]) -> List[PricedRow]:
    """Price every schedule at every size, in bytes."""
    floor = floor_of(topology)
    by_plan = [
        [PricedRow(plan.label, each, bottleneck(each), floor.seconds(each.size_bytes))
         for each in _prices(plan, topology, sizes)]
        for plan in plans
    ]  # fmt: skip
    return [row for of_size in zip(*by_plan) for row in of_size]


def _prices(plan: Plan, topology: Topology, sizes: Sequence[int]) -> List[Price]:
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


def table(rows: Sequence[PricedRow], topology: Topology, notes: Sequence[str] = ()) -> str:
    """The rows as text, then what they mean, and ``notes``."""
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size B':>15}", HEADING]
    for size, same_size in groupby(rows, key=lambda row: row.size_bytes):
        same = list(same_size)
        lines += ["", f"{size:>15,}  {in_words(size)}", *priced_lines(same)]
    return as_table(lines, COLUMNS, *notes, *_said_of(topology))


def cheapest(rows: Sequence[PricedRow], topology: Topology) -> str:
    """A line for each size: the row of the lowest price, the first of several, on one screen."""
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size':>9}{NUMBERS}"]
    for size, same_size in groupby(rows, key=lambda row: row.size_bytes):
        lowest = min(same_size, key=lambda row: row.predicted_s)
        lines.append(f"{in_words(size):>9}{_numbers(lowest)}")
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
