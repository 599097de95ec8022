"""A kvstore that sums gradients by a schedule: the from-scratch algorithms, under the ordinary ``gluon.Trainer``."""

from __future__ import annotations

from typing import Optional, Sequence

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.schedule import Schedule
from gluonlab.kvstores.summing import SummingKVStore
from gluonlab.kvstores.sums import Ranks


class ScheduleKVStore(SummingKVStore):
    """Sums over the devices of the arrays that it is given, by the algorithm ``name`` of `gluonlab.collectives.algorithms`.

    Keys that come in one list are summed together: their arrays are cut into chunks as one, and wait for each other. Give the same
    list every time. ``order``: which device plays which rank, such as a topology's ring; see `Schedule.placed`. Executors are made
    when their keys are first used, and again when they come with other arrays. ``priority`` is that of the first and the last thing
    that is queued for them; transfers are made as soon as their chunks are ready. Use a store from one thread.

    Raises ScheduleError for an unknown name, and for an order that does not name every device once.
    """

    def __init__(self, name: str, order: Optional[Sequence[int]] = None) -> None:
        super().__init__(name)
        self._order = order
        self.schedule(2 if order is None else len(order))  # whether there is one

    def schedule(self, world_size: int) -> Schedule:
        """What the store runs for so many devices."""
        schedule = make_schedule(self._name, world_size)
        return schedule if self._order is None else schedule.placed(self._order)

    def executor(self, arrays: Ranks) -> Executor:
        return Executor(self.schedule(len(arrays)), arrays)
