"""Makes processes that train together agree on the time, on signals, and on when to stop.

A signal may reach only one process, callbacks run in one process, and clocks differ. But all
processes must write checkpoints and stop after the same step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, TypeVar

import numpy as np

from gluonlab.errors import RunError
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T")
POLL_EVERY = 4  # batches of an evaluation between two checks for a signal
# Steps until all processes know of a request to stop. Losses are exchanged every 4 steps, for the
# first time in the 9th step of an epoch (`gluonlab.training.loss_meter`).
STOP_DELAY = 9


class StopCoordinator:
    """The time, the signal and the last step on which all processes of ``group`` agree.

    Rank 0 sends its clock and its request to stop. Each process sends the signal that its
    ``request`` has recorded. These values are exchanged together with the losses, every few steps,
    so that no step waits for them (`local_flags`, `update_from_all`). A single process uses its
    values immediately.
    """

    def __init__(self, group: ProcessGroup = SINGLE_PROCESS, request: Optional[StopRequest] = None) -> None:
        self._group, self._request = group, request or StopRequest()
        self._start_time, self._shared_time = time.monotonic(), 0.0
        self._shared_signal: Optional[int] = None
        self._shared_stop_step: Optional[int] = None
        self.stop_step_of_rank_0: Optional[int] = None  # the step after which rank 0 wants to stop

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._group.rank

    def local_flags(self) -> "NDArray[Any]":
        """Return this process's values for the exchange: time, signal, and step to stop after.

        A received signal is encoded as a 1 at the signal's position. Time and step are 0 in all
        processes except rank 0, so that the sum over all processes is rank 0's value.
        """
        time_s, stop_step = 0.0, 0
        if self._group.rank == 0:
            time_s = self._local_time()
            stop_step = 0 if self.stop_step_of_rank_0 is None else 1 + self.stop_step_of_rank_0
        signals = [self._request.number == number for number in EXCEPTION_BY_SIGNAL]
        return np.array([time_s, *signals, stop_step], float)

    def update_from_all(self, totals: "NDArray[Any]") -> None:
        """Set the agreed values from the sum of all processes' `local_flags`."""
        self._shared_time = float(totals[0])
        received = [number for number, times in zip(EXCEPTION_BY_SIGNAL, totals[1:]) if times]
        self._shared_signal = received[0] if received else None
        stop_step = int(totals[1 + len(EXCEPTION_BY_SIGNAL)])
        self._shared_stop_step = stop_step - 1 if stop_step else None

    def shared_time(self) -> float:
        """Return the seconds since rank 0 started, as of the last exchange with other processes."""
        return self._local_time() if self._group.size == 1 else self._shared_time

    @property
    def signal_received(self) -> bool:
        """True if this process has received a signal, or knows of a signal to another process."""
        return self._request.number is not None

    @property
    def agreed_signal(self) -> Optional[int]:
        """The signal that all processes act on, or None."""
        return self._request.number if self._group.size == 1 else self._shared_signal

    def request_stop(self, step: int) -> None:
        """Request that training stops as soon as all processes know of the request.

        Only rank 0 calls this method. ``step``: the last step of rank 0.
        """
        self.stop_step_of_rank_0 = step if self._group.size == 1 else step + STOP_DELAY

    def synchronize(self) -> None:
        """Exchange the values now. All processes must call this method together."""
        if self._group.size > 1:
            self.update_from_all(self._group.all_reduce_values(self.local_flags()))

    @property
    def is_stopping(self) -> bool:
        """True if training stops at the end of this epoch or earlier."""
        return self._stop_step is not None

    def stops_after(self, step: int) -> bool:
        """Return True if training stops after this step, in all processes."""
        return self._stop_step is not None and step >= self._stop_step

    @property
    def _stop_step(self) -> Optional[int]:
        return self.stop_step_of_rank_0 if self._group.size == 1 else self._shared_stop_step

    def poll_between(self, items: "Iterable[T]", on_signal: Callable[[], None]) -> "Iterator[T]":
        """Yield ``items``; after an item, call ``on_signal`` if all processes agree on a signal.

        All processes must have the same number of items.
        """
        for count, item in enumerate(items, start=1):
            yield item
            if count % POLL_EVERY == 0:
                self.synchronize()
            if self.agreed_signal is not None:
                on_signal()

    def raise_signal(self) -> None:
        """Raise the exception of the agreed signal, if any, even if another process received it."""
        if self.agreed_signal is not None:
            self._request.set_signal(self.agreed_signal)
            self._request.raise_if_requested()

    def _local_time(self) -> float:
        return time.monotonic() - self._start_time


def run_on_all_ranks(group: ProcessGroup, work: Callable[[], T]) -> T:
    """Call ``work`` in every process, wait for all processes, and return this process's result.

    If ``work`` fails in a process, that process raises the exception, and all other processes raise
    RunError. ``work`` must not communicate with other processes.
    """
    try:
        result = work()
    except BaseException:
        group.all_gather(np.array(1))
        group.mark_common_exit()
        raise
    if group.all_gather(np.array(0)).any():
        group.mark_common_exit()
        raise RunError("another process of this run failed to start: see its error message")
    return result
