"""What ``bench allreduce`` prints: a line for each size, and below it one for each algorithm."""

from __future__ import annotations

import math
import statistics
import textwrap
from itertools import groupby
from typing import List, Optional, Sequence

from gluonlab.bench.allreduce.measure import Report, Row
from gluonlab.bench.allreduce.memory import LIMIT, Speeds
from gluonlab.bench.allreduce.sizes import in_words
from gluonlab.collectives.cost import algbw, bus_factor
from gluonlab.collectives.schedule import ALLREDUCE

COLUMNS = (
    "size, count, type: of the buffer on each device. time: "
    "the median of {rounds}, warmed up, without waiting between allreduces. algbw: size / time; "
    "busbw: algbw * 2(n-1)/n for n devices, to be compared with the speed of a link; "
    "both in GB/s, 10^9 bytes. error: the largest difference from the exact sum, "
    "of random whole numbers, in the same run. price: "
    "what the schedule costs on {topology}, with barriers between steps, "
    "which the executor does not have."
)
OF_LIMIT = "of limit: how much of the memory limit's speed is reached."


def table(report: Report, notes: Sequence[str] = (), width: int = 80) -> str:
    """The rows as text, at most ``width`` columns wide, then what the columns mean, and
    ``notes``.
    """
    return f"{rows_table(report.rows)}\n\n{explain(report, notes, width)}"


def rows_table(rows: Sequence[Row]) -> str:
    """The rows alone: a line for each size, number of devices and of arrays; its algorithms, and
    the memory limit, below it.
    """
    lines = [
        f"{'size B':>12}{'count':>12}  type",
        f"  {'algorithm':<25}{'time us':>11}{'algbw':>7}{'busbw':>7}{'error':>8}{'price us':>10}{'of limit':>10}",
    ]
    for _, group in groupby(rows, key=lambda row: (row.size_bytes, row.world_size, row.arrays)):
        same = list(group)
        lines += ["", _heading(same[0]), *(_line(row) for row in same)]
        if same[0].limit_s:
            lines.append(_limit(same[0], statistics.median(same[0].limit_s)))
    return "\n".join(lines)


def explain(report: Report, notes: Sequence[str] = (), width: int = 80) -> str:
    """What the columns of `rows_table` mean, paragraph by paragraph."""
    where = report.topology.name if report.topology else "a topology, which --topology names"
    rounds = f"{report.rounds} interleaved round{'s' * (report.rounds > 1)}"
    texts = [COLUMNS.format(rounds=rounds, topology=where), *notes]
    if any(row.limit_s for row in report.rows):
        texts.append(f"{OF_LIMIT} {LIMIT}")
    if report.speeds:
        texts.append(_speeds(report.speeds))
    return "\n\n".join(textwrap.fill(text, width) for text in texts)


def _heading(row: Row) -> str:
    arrays = f" in {row.arrays} arrays" if row.arrays > 1 else ""
    devices = f"{row.world_size} device{'s' * (row.world_size > 1)}"
    return (
        f"{row.size_bytes:>12}{row.count:>12}  {row.dtype:<8}  "
        f"{in_words(row.size_bytes)}{arrays} on {devices}"
    )


def _limit(row: Row, seconds: float) -> str:
    speed = algbw(row.size_bytes, seconds)
    bandwidths = f"{speed / 1e9:>7.2f}{speed * bus_factor(ALLREDUCE, row.world_size) / 1e9:>7.2f}"
    return f"  {'(memory limit)':<25}{_us(seconds):>11}{bandwidths}"


def _line(row: Row) -> str:
    of_limit = "-" if row.of_limit is None else f"{row.of_limit:.0%}"
    bandwidths = f"{row.algbw / 1e9:>7.2f}{row.busbw / 1e9:>7.2f}"
    return f"  {row.algorithm:<25}{_us(row.time_s):>11}{bandwidths}{_error(row.error):>8}{_us(row.predicted_s):>10}{of_limit:>10}"


def _us(seconds: Optional[float]) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"


def _error(error: float) -> str:
    return "0" if error == 0 else "nan" if math.isnan(error) else f"{error:.1e}"


def _speeds(speeds: Speeds) -> str:
    return (
        f"This machine, by a probe in the same run: {speeds.latency_s * 1e6:.1f} us for a "
        f"transfer without bytes; {speeds.copy_bytes_per_s / 1e9:.1f} GB/s copied and "
        f"{speeds.add_bytes_per_s / 1e9:.1f} GB/s added by all devices together, "
        f"{speeds.device_copy_bytes_per_s / 1e9:.1f} and "
        f"{speeds.device_add_bytes_per_s / 1e9:.1f} by one alone."
    )


def wrong(rows: Sequence[Row]) -> List[str]:
    """The algorithms whose sums were not exact, each once."""
    return list(dict.fromkeys(row.algorithm for row in rows if row.error != 0))
