"""Fake process groups, whose ranks are threads of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np

from gluonlab.kvstores.process_groups import SummingGroup

HANG_LIMIT_S = 600  # the limit of a wait for another thread
# MXNet never frees some MB of each thread that queues operators, so all tests share threads.
THREADS = ThreadPoolExecutor(max_workers=4)


class ThreadGroup(SummingGroup):
    """A rank of a group of threads, which add up on the host in float64."""

    name = "threads"
    sums_float16 = True

    def __init__(self, exchange, rank):
        super().__init__(rank, exchange.barrier.parties)
        self.exchange = exchange
        self.sums = []  # (elements, type) of every array that was summed

    def sum_array(self, number, array, priority):
        self.sums.append((array.size, np.dtype(array.dtype).name))
        contributions = self.exchange.contributions
        contributions[self.rank] = (number, array.asnumpy())
        self.exchange.barrier.wait(timeout=HANG_LIMIT_S)
        numbers, arrays = zip(*contributions)
        assert len(set(numbers)) == 1 and all(array.shape == arrays[0].shape for array in arrays)
        total = np.sum([array.astype("float64") for array in arrays], axis=0)
        self.exchange.barrier.wait(timeout=HANG_LIMIT_S)
        array[:] = total.astype(array.dtype)


class SumExchange:
    """The barrier of a group of threads, and the array of each rank."""

    def __init__(self, size):
        self.barrier, self.contributions = threading.Barrier(size), [None] * size


def run_in_threads(size, work):
    """Run ``work(group)`` in ``size`` threads at once; return the results by rank."""
    exchange = SumExchange(size)

    def run(rank):
        try:
            # Names of networks start at 0, as in a process: trainers sort parameters by name, and
            # dense10 precedes dense9.
            with mx.name.NameManager():
                return work(ThreadGroup(exchange, rank))
        except BaseException:
            exchange.barrier.abort()  # end the waits of the other threads
            raise

    futures = [THREADS.submit(run, rank) for rank in range(size)]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
