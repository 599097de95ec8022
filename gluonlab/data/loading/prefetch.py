"""Computes an iterator's items in advance, in a thread, to prefetch batches for `Loader`."""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, Generator, Iterator, List, NamedTuple, TypeVar

WORKING, IDLE = "gluonlab-prefetch", "gluonlab-resting"  # names of a thread in these two states
Item = TypeVar("Item")


def prefetch(items: "Iterator[Item]", depth: int) -> "Generator[Item, None, None]":
    """Yield ``items``. A thread computes up to ``depth`` items in advance.

    Raises the exceptions that ``items`` raises. Close the generator to stop early. The thread is
    reused by later calls in this process. A new thread per epoch would leak memory, because MXNet
    never frees about 5 MB for each thread that has queued operators.
    """
    thread = _get_idle_thread()
    ready: "queue.Queue[Any]" = queue.Queue(depth)
    stop, stopped = threading.Event(), threading.Event()
    is_submitted = False
    try:
        thread.jobs.put(_PrefetchJob(lambda: _fill_queue(items, ready, stop), stopped))
        is_submitted = True
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        # After an early Ctrl-C, no job was submitted. The child of a fork does not have the thread.
        if is_submitted and thread.is_alive():
            stopped.wait()
        _idle_threads.append(thread)


def _fill_queue(items: "Iterator[Item]", ready: "queue.Queue[Any]", stop: threading.Event) -> None:
    """Compute the items, and put (item, None) into the queue for each item.

    At the end, put (None, None). After an exception, put (None, error). Stop early if ``stop`` is
    set.
    """

    def put(item: Any) -> bool:
        """Wait for room in the queue, and add the item. Return False if ``stop`` was set first."""
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    try:
        for item in items:
            if not put((item, None)):
                return
        put((None, None))
    except BaseException as error:  # `prefetch` raises it in the consumer
        put((None, error))


class _PrefetchJob(NamedTuple):
    """A function that a prefetch thread calls, and an event that the thread sets afterwards."""

    work: Callable[[], None]
    done: threading.Event


class _PrefetchThread(threading.Thread):
    """Thread that runs one job after another until the process ends."""

    def __init__(self) -> None:
        super().__init__(name=IDLE, daemon=True)
        self.jobs: "queue.SimpleQueue[_PrefetchJob]" = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Run the queued jobs one by one. The thread's name shows whether it is working."""
        while True:
            job = self.jobs.get()
            self.name = WORKING
            job.work()
            self.name, done = IDLE, job.done
            del job  # because the job refers to the arrays of the last batches
            done.set()
            del done


_idle_threads: List[_PrefetchThread] = []


def _get_idle_thread() -> _PrefetchThread:
    """Return an idle thread, or a new thread.

    In a forked child, no thread in the list is alive, so a new thread is created.
    """
    while _idle_threads:
        thread = _idle_threads.pop()
        if thread.is_alive():
            return thread
    return _PrefetchThread()
