"""How busy the steps of a schedule make links and devices, counted for millions of transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Tuple

import numpy as np

from gluonlab.collectives.columns import IS_ADD, Columns, columns_of
from gluonlab.collectives.links import INFINITE, Topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.wires import NONE, Wires, wires_of

# of links in steps, and of transfers, looked at together: some 100 MB
MOST_AT_ONCE = 2**20


class StepLoad(NamedTuple):
    """The time of a step's busiest link, its name, and how many chunks are added.

    ``most``: by the device with most to add; ``together``: by all. Where devices share a memory,
    what comes to a chunk from several of them counts once. An empty step has no link.
    """

    transfer_s: float
    bottleneck: str
    most: int
    together: int


@dataclass(frozen=True)
class Loads:
    """The messages of neighbouring steps, in order, and the additions of these ``steps``.

    A message is all that one device sends another in a step. ``step``, counted from the first of
    ``steps``, ``pair``, the row of its devices in ``wires``, and ``chunks``: (messages,). ``most``
    and ``together``: see `StepLoad`, (steps,).
    """

    steps: int
    wires: Wires
    step: Any
    pair: Any
    chunks: Any
    most: Any
    together: Any

    def by_step(self, chunk_bytes: float) -> Iterator[StepLoad]:
        """What each step is busy with, for chunks of so many bytes."""
        wires, links = self.wires, len(self.wires.links)
        passed = wires.passed[self.pair]  # (messages, longest)
        there = passed != NONE
        message_bytes = (self.chunks * chunk_bytes)[:, None]
        link_s = wires.latency_s[self.pair][:, None] + message_bytes / wires.bytes_per_s[passed]
        cell = ((self.step * links)[:, None] + passed)[there]  # a link in a step
        busy_s = np.bincount(cell, link_s[there], self.steps * links)
        longest_s = busy_s.reshape(self.steps, links).max(axis=1, initial=0.0)
        busiest = cell[busy_s[cell] == longest_s[cell // links]] if links else cell
        names = [""] * self.steps
        for step, first in zip(*np.unique(busiest // max(1, links), return_index=True)):
            names[step] = wires.links[busiest[first] % links].name  # of equal ones the first
        return map(StepLoad, longest_s.tolist(), names, self.most.tolist(), self.together.tolist())


def loads_of(schedule: Schedule, topology: Topology) -> Iterator[Loads]:
    """Those of all steps, in order, some steps at a time."""
    columns, devices = columns_of(schedule), schedule.world_size
    pairs = np.zeros(devices * devices, bool)
    pairs[columns.src * devices + columns.dst] = True
    used = np.flatnonzero(pairs)
    wires = wires_of(topology.routes, *np.divmod(used, devices))
    busiest_step = int(np.diff(columns.starts).max(initial=1))
    at_once = max(1, MOST_AT_ONCE // max(busiest_step, len(wires.links), devices))
    for first in range(0, len(schedule.steps), at_once):
        steps = min(at_once, len(schedule.steps) - first)
        rows = slice(columns.starts[first], columns.starts[first + steps])
        step = columns.step[rows] - first
        pair = np.searchsorted(used, columns.src[rows] * devices + columns.dst[rows])
        messages, chunks = _counted(step * len(used) + pair)
        adds = np.flatnonzero(columns.op[rows] == IS_ADD) + rows.start
        if topology.shared_reduce_bytes_per_s < INFINITE:
            adds = _first_of_each(columns, adds, schedule.chunks)
        cell = (columns.step[adds] - first) * devices + columns.dst[adds]
        added = np.bincount(cell, minlength=steps * devices).reshape(-1, devices)
        most, together = added.max(axis=1), added.sum(axis=1)
        number, place = np.divmod(messages, len(used))
        yield Loads(steps, wires, number, place, chunks, most, together)


def _counted(values: Any) -> Tuple[Any, Any]:
    """The different values in the order in which they come, and how often each does."""
    different, first, often = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return different[order], often[order]


def _first_of_each(columns: Columns, rows: Any, chunks: int) -> Any:
    """Of the rows that write to the same chunk of a rank in the same step, the first."""
    cells = np.stack([columns.step[rows], columns.dst[rows] * chunks + columns.chunk[rows]])
    return rows[np.unique(cells, axis=1, return_index=True)[1]]
