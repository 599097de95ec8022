"""Groups of made-up processes: threads that meet for each sum, so that a test sees all of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np

from gluonlab.kvstores.process_groups import SummingGroup

HANG_LIMIT_S = 600  # bounds a wait for a thread that never comes
# A new thread that queues operators costs MXNet some MB for ever: the same ones serve all tests.
THREADS = ThreadPoolExecutor(max_workers=4)


class ThreadGroup(SummingGroup):
    """One of ``size`` threads, which add up on the host, in float64."""

    name = "threads"
    sums_float16 = True

    def __init__(self, meeting, rank):
        super().__init__(rank, meeting.barrier.parties)
        self.meeting = meeting
        self.sums = []  # (elements, type) of every array that was summed

    def sum_array(self, number, array, priority):
        self.sums.append((array.size, np.dtype(array.dtype).name))
        given = self.meeting.given
        given[self.rank] = (number, array.asnumpy())
        self.meeting.barrier.wait(timeout=HANG_LIMIT_S)
        numbers, arrays = zip(*given)
        assert len(set(numbers)) == 1 and all(array.shape == arrays[0].shape for array in arrays)
        total = np.sum([array.astype("float64") for array in arrays], axis=0)
        self.meeting.barrier.wait(timeout=HANG_LIMIT_S)
        array[:] = total.astype(array.dtype)


class SumExchange:
    def __init__(self, size):
        self.barrier, self.given = threading.Barrier(size), [None] * size


def run_in_threads(size, work):
    """``work(group)`` by each of ``size`` processes at once: what they return, by rank.

    MXNet numbers the names of networks by thread, and trainers sort parameters by name: dense10
    comes before dense9. Each of these processes starts to count at 0, as real ones do.
    """
    meeting = SumExchange(size)

    def run(rank):
        try:
            with mx.name.NameManager():
                return work(ThreadGroup(meeting, rank))
        except BaseException:
            meeting.barrier.abort()  # nobody waits for this one
            raise

    futures = [THREADS.submit(run, rank) for rank in range(size)]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
