"""Allreduce by size and algorithm on a machine that is elsewhere: prices, nothing is run.

Does not import MXNet.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Any, DefaultDict, Dict, List, Optional, Sequence

from gluonlab.bench.allreduce.plans import Plan
from gluonlab.bench.allreduce.sizes import in_words
from gluonlab.collectives.cost import Price, price
from gluonlab.collectives.topology import Topology

COLUMNS = (
    "Prices, not measurements: every message costs its latency and its bytes on every link of "
    "its way, messages share links, and a barrier ends each step. algbw: size / time; busbw: "
    "algbw * 2(n-1)/n for n devices; both in GB/s, 10^9 bytes. bottleneck: "
    "the link that steps wait for the longest."
)
ADDING = "additions"


@dataclass(frozen=True)
class PricedRow:
    """What a schedule costs at a size; ``bottleneck``: the link that its steps wait for the
    longest, or the additions.
    """

    algorithm: str
    price: Price
    bottleneck: str

    def as_json(self) -> Dict[str, Any]:
        """What --json prints of the row; bandwidths in GB/s, as in the table."""
        return {
            "algorithm": self.algorithm,
            "size_bytes": self.price.size_bytes,
            "time_us": self.price.seconds * 1e6,
            "algbw": _finite(self.price.algbw / 1e9),
            "busbw": _finite(self.price.busbw / 1e9),
            "bottleneck": self.bottleneck,
        }


def simulate(topology: Topology, plans: Sequence[Plan], sizes: Sequence[int]) -> List[PricedRow]:
    """Price every schedule at every size, in bytes."""
    prices = [
        (plan.label, price(plan.schedule, topology, size)) for size in sizes for plan in plans
    ]
    return [PricedRow(label, priced, bottleneck(priced)) for label, priced in prices]


def bottleneck(priced: Price) -> str:
    """The link that the steps wait for the longest, in all; ``additions`` where these take longer;
    empty where nothing is sent.
    """
    waiting_s: DefaultDict[str, float] = defaultdict(float)
    for step in priced.steps:
        waiting_s[step.bottleneck] += step.transfer_s
        waiting_s[ADDING] += step.reduce_s
    return max(waiting_s, key=lambda name: waiting_s[name], default="")


def table(
    rows: Sequence[PricedRow], topology: Topology, notes: Sequence[str] = (), width: int = 80
) -> str:
    """The rows as text, at most ``width`` columns wide, then what they mean, and ``notes``."""
    heading = f"  {'algorithm':<25}{'time us':>12}{'algbw':>8}{'busbw':>8}  bottleneck"
    lines = [f"{topology.name}, {topology.world_size} devices", "", f"{'size B':>12}", heading]
    for size, same_size in groupby(rows, key=lambda row: row.price.size_bytes):
        lines += [
            "",
            f"{size:>12}  {in_words(int(size))}",
            *(_line(row, width) for row in same_size),
        ]
    texts = [COLUMNS, *notes, f"{topology.name}: {topology.note}."]
    return "\n".join(
        [*lines, *(part for text in texts for part in ["", textwrap.fill(text, width)])]
    )


def _line(row: PricedRow, width: int) -> str:
    seconds = row.price.seconds
    time_us = f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"
    bandwidths = [_finite(value / 1e9) for value in (row.price.algbw, row.price.busbw)]
    columns = "".join(
        f"{'-' if value is None else format(value, '.2f'):>8}" for value in bandwidths
    )
    line = f"  {row.algorithm:<25}{time_us:>12}{columns}"
    return f"{line}  {textwrap.shorten(row.bottleneck, width - len(line) - 2, placeholder='...')}".rstrip()


def _finite(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None
