"""Table for ``allreduce bench``: a heading for each size, followed by a line per algorithm."""

from __future__ import annotations

import math
import textwrap
from itertools import groupby
from statistics import median
from typing import Sequence

from gluonlab.bench.allreduce.measure_allreduce import AllreduceReport, AllreduceRow
from gluonlab.bench.allreduce.memory_bandwidth import LIMIT_NOTE, MemorySpeeds
from gluonlab.bench.harness.table_format import WIDTH, format_factor, format_microseconds, rounds_text
from gluonlab.collectives.cost_model import algbw, bus_factor
from gluonlab.collectives.schedule import ALLREDUCE
from gluonlab.plain_text import format_size

COLUMN_NOTES = (
    "size, count, type: of the buffer on each device. time: the median of {rounds}, after a "
    "warm-up, without waiting between allreduces. algbw: size / time; busbw: algbw * 2(n-1)/n "
    "for n devices, comparable with a link's speed; both in GB/s, 10^9 bytes. error: the largest "
    "difference from the exact sum of random whole numbers, in the same run. pred.: the "
    "predicted time of the schedule on {topology}, with barriers between steps, which the "
    "executor does not have; lower bound: of the predicted time of all schedules there."
)
LIMIT_SHARE_NOTE = "of limit: fraction of the memory limit's speed."


def format_report(report: AllreduceReport, notes: Sequence[str] = ()) -> str:
    """Return the rows as text, followed by an explanation of the columns, and ``notes``."""
    return f"{rows_table(report.rows)}\n\n{explain_columns(report, notes)}"


def rows_table(rows: Sequence[AllreduceRow]) -> str:
    """Return the rows as text, with a heading for each size, device count and array count."""
    columns = f"{'time us':>11}{'algbw':>7}{'busbw':>7}{'error':>8}{'pred. us':>10}{'of limit':>10}"
    lines = [f"{'size B':>15}{'count':>16}  type", f"  {'algorithm':<25}{columns}"]
    for _, group in groupby(rows, key=lambda row: (row.size_bytes, row.world_size, row.arrays)):
        rows_of_size = list(group)
        lines += ["", _size_heading(rows_of_size[0]), *map(_result_line, rows_of_size)]
        if rows_of_size[0].limit_s:
            lines.append(_limit_line(rows_of_size[0], median(rows_of_size[0].limit_s)))
        if rows_of_size[0].lower_bound_s:
            lines.append(_lower_bound_line(rows_of_size))
    return "\n".join(lines)


def explain_columns(report: AllreduceReport, notes: Sequence[str] = ()) -> str:
    """Return an explanation of the columns of `rows_table`, followed by ``notes``."""
    topology_name = report.topology.name if report.topology else "a topology, which --topology sets"
    texts = [COLUMN_NOTES.format(rounds=rounds_text(report.rounds), topology=topology_name), *notes]
    if any(row.limit_s for row in report.rows):
        texts.append(f"{LIMIT_SHARE_NOTE} {LIMIT_NOTE}")
    if report.speeds:
        texts.append(_describe_speeds(report.speeds))
    return "\n\n".join(textwrap.fill(text, WIDTH) for text in texts)


def _size_heading(row: AllreduceRow) -> str:
    """Return the heading above the rows of one size."""
    arrays = f" in {row.arrays} arrays" if row.arrays > 1 else ""
    layout = f"{arrays} on {row.world_size} device{'s' * (row.world_size > 1)}"
    size = f"{row.size_bytes:>15,}{row.count:>16,}  {row.dtype:<8}"
    return f"{size}  {format_size(row.size_bytes)}{layout}"


def _limit_line(row: AllreduceRow, seconds: float) -> str:
    speed = algbw(row.size_bytes, seconds)
    bus = speed * bus_factor(ALLREDUCE, row.world_size)
    return _bandwidth_columns("(memory limit)", seconds, speed, bus)


def _lower_bound_line(rows: Sequence[AllreduceRow]) -> str:
    """Return a line with the lower bound, and the ratio of the best prediction to this bound."""
    lower_bound_s = rows[0].lower_bound_s or 0.0
    lowest = min((row.predicted_s for row in rows if row.predicted_s is not None), default=None)
    gap = format_factor(None if lowest is None else lowest / lower_bound_s)
    return f"  {f'(lower bound; lowest prediction: {gap} this bound)':<58}{format_microseconds(lower_bound_s):>10}"


def _result_line(row: AllreduceRow) -> str:
    """Return the table line for one algorithm: time, bandwidths, error and predicted time."""
    of_limit = "-" if row.of_limit is None else f"{row.of_limit:.0%}"
    error = "0" if row.error == 0 else "nan" if math.isnan(row.error) else f"{row.error:.1e}"
    start = _bandwidth_columns(row.algorithm, row.time_s, row.algbw, row.busbw)
    return f"{start}{error:>8}{format_microseconds(row.predicted_s):>10}{of_limit:>10}"


def _bandwidth_columns(label: str, seconds: float, algbw: float, busbw: float) -> str:
    return f"  {label:<25}{format_microseconds(seconds):>11}{algbw / 1e9:>7.2f}{busbw / 1e9:>7.2f}"


def _describe_speeds(speeds: MemorySpeeds) -> str:
    """Return a sentence with the measured latency and the speeds of copies and additions."""
    return (
        "Speeds of this machine, measured in the same run: a transfer without bytes takes "
        f"{speeds.latency_s * 1e6:.1f} us; all devices together copy "
        f"{speeds.copy_bytes_per_s / 1e9:.1f} GB/s, or add "
        f"{speeds.add_bytes_per_s / 1e9:.1f} GB/s; a single device copies "
        f"{speeds.device_copy_bytes_per_s / 1e9:.1f} GB/s, or adds "
        f"{speeds.device_add_bytes_per_s / 1e9:.1f} GB/s."
    )
