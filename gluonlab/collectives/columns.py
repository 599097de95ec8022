"""A schedule's transfers as columns of numbers, for what looks at millions of them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, List

import numpy as np

from gluonlab.collectives.schedule import ADD, COPY, Schedule

Column = Any  # an array of one dimension
IS_ADD, IS_COPY, NEITHER = range(3)
CODES = {ADD: IS_ADD, COPY: IS_COPY}


@dataclass(frozen=True)
class Columns:
    """One row for each transfer, step by step, in the order of the steps' lists.

    ``step``, ``src``, ``dst``, ``chunk``: whole numbers (transfers,). ``op`` (transfers,): IS_ADD,
    IS_COPY, or NEITHER. ``starts`` (steps + 1,): the first row of each step, then their number.
    """

    step: Column
    src: Column
    dst: Column
    chunk: Column
    op: Column
    starts: Column

    def rows_of_chunks(self, chunks: int) -> List[Column]:
        """The rows of each of so many chunks, in order."""
        by_chunk = np.argsort(self.chunk, kind="stable")
        ends = np.cumsum(np.bincount(self.chunk, minlength=chunks))
        return np.split(by_chunk, ends[:-1])


def columns_of(schedule: Schedule) -> Columns:
    """Raises TypeError where a rank or a chunk is no whole number, or too large for 64 bits."""
    transfers = [transfer for step in schedule.steps for transfer in step]
    lengths = [len(step) for step in schedule.steps]
    src, dst, chunk = (_whole(list(map(itemgetter(place), transfers))) for place in range(3))
    op = np.array([CODES.get(of, NEITHER) for of in map(itemgetter(3), transfers)], np.int8)
    step = np.repeat(np.arange(len(lengths)), lengths)
    return Columns(step, src, dst, chunk, op, np.cumsum([0, *lengths]))


def _whole(values: List[int]) -> Column:
    column = np.array(values) if values else np.zeros(0, np.int64)
    if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
        raise TypeError("ranks and chunks are whole numbers")
    return column.astype(np.int64, copy=False)
