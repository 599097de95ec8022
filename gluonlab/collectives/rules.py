"""The rules of a step (`schedule.Schedule`), by which its transfers may be made at once."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import numpy as np

from gluonlab.collectives.columns import IS_COPY, NEITHER, Column, Columns, columns_of
from gluonlab.collectives.schedule import ADD, OPS, Schedule
from gluonlab.errors import ScheduleError

Cell = Tuple[int, int]  # (rank, chunk)
Place = Tuple[int, int]  # (step, position in the step)


def checked_columns(schedule: Schedule) -> Columns:
    """The transfers of a schedule all of whose steps obey the rules.

    Raises ScheduleError, which names the first transfer that breaks one.
    """
    try:
        columns = columns_of(schedule)
    except TypeError:  # what is no whole number, is first looked at as what else it is
        for number in range(len(schedule.steps)):
            _check_step(schedule, number)
        raise
    broken = _first_broken(columns, schedule.world_size, schedule.chunks)
    if broken is not None:
        _check_step(schedule, broken)
    return columns


def where(schedule: Schedule, place: Place) -> str:
    """A transfer, for an error."""
    step, position = place
    return f"{schedule.name}, step {step}, transfer {position} ({schedule.steps[step][position]})"


def _first_broken(columns: Columns, ranks: int, chunks: int) -> Optional[int]:
    """The first step with a transfer that breaks a rule."""
    src, dst, chunk = columns.src, columns.dst, columns.chunk
    bad = (columns.op == NEITHER) | (src == dst) | ~_within(chunk, chunks)
    bad |= ~_within(src, ranks) | ~_within(dst, ranks)
    first_bad = columns.step[np.argmax(bad)] if bad.any() else len(columns.starts) - 1
    writer = np.full(ranks * chunks, -1)  # of each cell, the last row that writes it
    for step in range(first_bad):
        rows = slice(*columns.starts[step : step + 2])
        read = src[rows] * chunks + chunk[rows]
        written = dst[rows] * chunks + chunk[rows]
        numbers = np.arange(rows.start, rows.stop)
        writer[written] = numbers
        twice = written[writer[written] != numbers]
        copied = written[columns.op[rows] == IS_COPY]
        if (writer[read] >= rows.start).any() or np.isin(twice, copied).any():
            return step
    return int(first_bad) if bad.any() else None


def _within(column: Column, count: int) -> Column:
    return (column >= 0) & (column < count)


def _check_step(schedule: Schedule, number: int) -> None:
    """Check the rules of a step; raise for the first transfer that breaks one."""
    n = schedule.world_size
    read: Dict[Cell, int] = {}
    written: Dict[Cell, str] = {}
    for position, transfer in enumerate(schedule.steps[number]):
        src, dst, chunk, op = transfer
        source, target = (src, chunk), (dst, chunk)
        fault: Optional[str] = None
        if op not in OPS:
            fault = f"{op!r} is no operation: choose {', '.join(OPS)}"
        elif not (0 <= src < n and 0 <= dst < n and 0 <= chunk < schedule.chunks):
            fault = f"there are {n} ranks and {schedule.chunks} chunks, counted from 0"
        elif src == dst:
            fault = "a rank cannot send to itself"
        elif source in written:
            fault = f"chunk {chunk} of rank {src} is written in the same step"
        elif target in read:
            fault = f"chunk {chunk} of rank {dst} is read in the same step"
        elif target in written and (op, written[target]) != (ADD, ADD):
            fault = (
                f"chunk {chunk} of rank {dst} is written twice in the step, not only by additions"
            )
        if fault:
            place = (number, position)
            raise ScheduleError(f"{where(schedule, place)}: {fault}", *place)
        read[source], written[target] = position, op
