"""What all processes of a group see after the same step: the time, and what asks to end.

Only so can they act together, although a signal comes to one of them, callbacks are called in one,
and no two clocks agree.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, TypeVar

import numpy as np

from gluonlab.errors import RunError
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest
from gluonlab.kvstores.process_groups import ALONE, Group

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T")
EVERY = 4  # batches of an evaluation
# Steps after which all know what one has told: losses are exchanged every 4 steps, for the first
# time in an epoch in its 9th (`gluonlab.training.loss_meter`).
WITHIN = 9


class Consensus:
    """The time and the signal by which every process of ``group`` decides.

    A process alone sees its own at once. Several tell each other: rank 0 its clock, each what
    signal ``request`` has got. That travels with the losses (`numbers`, `hear`), which they
    exchange every few steps anyway, so that no step waits for it.
    """

    def __init__(self, group: Group = ALONE, request: Optional[StopRequest] = None) -> None:
        self._group, self._request = group, request or StopRequest()
        self._began, self._told_moment = time.monotonic(), 0.0
        self._told_signal: Optional[int] = None
        self._told_stop: Optional[int] = None
        self.asked_to_stop: Optional[int] = None  # the step after which rank 0 wants to stop

    @property
    def rank(self) -> int:
        """This process's place."""
        return self._group.rank

    def numbers(self) -> "NDArray[Any]":
        """What this process tells: if it is rank 0, the time and a stop; a one for its signal."""
        moment, stop = 0.0, 0
        if self._group.rank == 0:
            moment = self._own_moment()
            stop = 0 if self.asked_to_stop is None else 1 + self.asked_to_stop
        signals = [self._request.number == number for number in EXCEPTION_BY_SIGNAL]
        return np.array([moment, *signals, stop], float)

    def hear(self, totals: "NDArray[Any]") -> None:
        """Take in the sums of all processes' `numbers`; of several signals, the first in RAISED."""
        self._told_moment = float(totals[0])
        came = [number for number, times in zip(EXCEPTION_BY_SIGNAL, totals[1:]) if times]
        self._told_signal = came[0] if came else None
        stop = int(totals[1 + len(EXCEPTION_BY_SIGNAL)])
        self._told_stop = stop - 1 if stop else None

    def moment(self) -> float:
        """Seconds since rank 0 began, as of the last exchange."""
        return self._own_moment() if self._group.size == 1 else self._told_moment

    @property
    def came(self) -> bool:
        """Whether a signal has come to this process, or has been taken from the others."""
        return self._request.number is not None

    @property
    def signal(self) -> Optional[int]:
        """The signal that all processes end by, if one has come."""
        return self._request.number if self._group.size == 1 else self._told_signal

    def ask_to_stop(self, step: int) -> None:
        """Rank 0 asks, after this step, that training stops, where all processes know it."""
        self.asked_to_stop = step if self._group.size == 1 else step + WITHIN

    def meet(self) -> None:
        """Have all processes know by now what each tells; every one calls this at once."""
        if self._group.size > 1:
            self.hear(self._group.total(self.numbers()))

    @property
    def stops(self) -> bool:
        """Whether training stops, at the latest when this epoch ends."""
        return self._stop is not None

    def stops_after(self, step: int) -> bool:
        """Whether training stops after this step, in all processes."""
        return self._stop is not None and step >= self._stop

    @property
    def _stop(self) -> Optional[int]:
        return self.asked_to_stop if self._group.size == 1 else self._told_stop

    def between(self, items: "Iterable[T]", answer: Callable[[], None]) -> "Iterator[T]":
        """``items``, as many in every process; ``answer`` is called after one, if a signal came."""
        for place, item in enumerate(items, start=1):
            yield item
            if place % EVERY == 0:
                self.meet()
            if self.signal is not None:
                answer()

    def answer(self) -> None:
        """Raise what the signal raises, which may have come to another process only."""
        if self.signal is not None:
            self._request.set_signal(self.signal)
            self._request.raise_if_requested()

    def _own_moment(self) -> float:
        return time.monotonic() - self._began


def all_or_none(group: Group, work: Callable[[], T]) -> T:
    """What ``work()`` gives, once all processes have done theirs.

    Raises what it raises here, and RunError where another process's has raised: no process goes on
    then. What is done needs no other process.
    """
    try:
        done = work()
    except BaseException:
        group.everyones(np.array(1))
        group.end_together()
        raise
    if group.everyones(np.array(0)).any():
        group.end_together()
        raise RunError("another process of this training cannot begin: its own message says why")
    return done
