"""Ranks that run side by side in one process: a thread for each, and sums that wait for all.

What would wait for ever between real processes is an error here, and comes at once: a rank that
waits for one that has ended.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np

from gluonlab.host.signals import delayed_signals


class Hang(Exception):
    """A rank waits for another one that has ended: real processes would wait for ever."""

    def __init__(self, rank: int, ended: int) -> None:
        super().__init__(f"rank {rank} waits for rank {ended}, which has ended")
        self.rank, self.ended = rank, ended


class Unequal(Exception):
    """The arrays that the ranks want to have summed do not have one shape."""

    def __init__(self, shapes: "Dict[int, Any]") -> None:
        super().__init__(", ".join(f"rank {rank}: {shapes[rank]}" for rank in sorted(shapes)))


class Outcome(NamedTuple):
    """What a rank's function returned, or raised."""

    value: Any
    error: Optional[BaseException]


class Ranks:
    """A group of ``size`` ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._given: List[Dict[int, Any]] = []  # of each sum, what each rank has given
        self._sums = [0] * size  # how many each rank has begun
        self._ended: List[int] = []
        self._rank_of: Dict[int, int] = {}  # by the number of the thread

    @property
    def rank(self) -> int:
        """The rank in whose thread this is called."""
        return self._rank_of[threading.get_ident()]

    def run(self, function: Callable[[int], Any]) -> List[Outcome]:
        """Call ``function(rank)`` in each rank, and wait until all have ended."""
        outcomes = [Outcome(None, None)] * self.size

        def run_one(rank: int) -> None:
            self._rank_of[threading.get_ident()] = rank
            try:
                outcomes[rank] = Outcome(function(rank), None)
            except BaseException as error:  # whatever a student's code raises
                outcomes[rank] = Outcome(None, error)
            finally:
                with self._changed:
                    self._ended.append(rank)
                    self._changed.notify_all()

        threads = [
            threading.Thread(target=run_one, args=(rank,), daemon=True) for rank in range(self.size)
        ]
        try:
            with delayed_signals():  # an interrupted start would leave running threads
                for thread in threads:
                    thread.start()
            # An interrupted Thread.join takes a running thread for a stopped one. Without a timeout
            # Python may miss a signal that comes just before it waits.
            with self._changed:
                while not self._changed.wait_for(lambda: len(self._ended) == self.size, 0.1):
                    continue
        finally:  # the time is over: end them, too
            for rank, thread in enumerate(threads):
                if thread.ident is not None and rank not in self._ended:
                    exception = ctypes.py_object(SystemExit)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident), exception
                    )
        return outcomes

    def allreduce(self, array: Any) -> Any:
        """The sum over the ranks of their arrays of one shape, in a new array; waits for all.

        Raises Hang if another rank has ended without it, Unequal for arrays of several shapes.
        """
        rank = self.rank
        with self._changed:
            number = self._sums[rank]
            self._sums[rank] += 1
            if number == len(self._given):
                self._given.append({})
            given = self._given[number]
            given[rank] = np.array(array, dtype=np.float64)
            self._changed.notify_all()
            while len(given) < self.size:
                for other in self._ended:
                    if other not in given:
                        raise Hang(rank, other)
                self._changed.wait(0.1)
        shapes = {other: each.shape for other, each in given.items()}
        if len(set(shapes.values())) > 1:
            raise Unequal(shapes)
        return np.sum([given[other] for other in range(self.size)], axis=0)
