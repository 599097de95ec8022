"""Batches that a thread makes ahead of those who use them."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Callable, Generator, Iterator, List, NamedTuple, Optional, TypeVar

Item = TypeVar("Item")

WORKING, RESTING = "gluonlab-prefetch", "gluonlab-resting"  # the names of a thread


class Ahead:
    """``make(items, depth)`` gives ``items``, which a thread computes up to ``depth`` ahead.

    The thread waits for the next time and ends with this object: whatever MXNet has once allocated
    for a thread that queues operators, some 5 MB, it keeps for the process's life, so a new one for
    each epoch would take more and more.
    """

    def __init__(self) -> None:
        self._resting: List[_Thread] = []

    def make(self, items: "Iterator[Item]", depth: int) -> "Generator[Item, None, None]":
        """Give ``items``; raises what they raise. To stop earlier, close this generator."""
        # more than one where two go on side by side
        thread = self._resting.pop() if self._resting else _Thread()
        ready: "queue.Queue[Any]" = queue.Queue(depth)
        stop, stopped = threading.Event(), threading.Event()
        given = False
        try:
            thread.jobs.put(_Job(lambda: _work(items, ready, stop), stopped))
            given = True
            while True:
                item, error = ready.get()
                if error is not None:
                    raise error
                if item is None:
                    return
                yield item
        finally:
            stop.set()
            if given:  # not when Ctrl-C came before that: then there may be nothing to wait for
                stopped.wait()
            self._resting.append(thread)


def _work(items: "Iterator[Item]", ready: "queue.Queue[Any]", stop: threading.Event) -> None:
    def put(item: Any) -> bool:
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
    except BaseException as error:  # handed over to the consumer, which raises it
        put((None, error))


class _Job(NamedTuple):
    """What a thread is to do, and what it then sets."""

    work: Callable[[], None]
    done: threading.Event


class _Thread:
    """A thread that does one job after another, until its owner is gone."""

    def __init__(self) -> None:
        self.jobs: "queue.SimpleQueue[Optional[_Job]]" = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self.jobs,), name=RESTING, daemon=True).start()
        weakref.finalize(self, self.jobs.put, None).atexit = False


def _serve(jobs: "queue.SimpleQueue[Optional[_Job]]") -> None:
    own = threading.current_thread()
    job = jobs.get()
    while job is not None:
        own.name = WORKING
        job.work()
        own.name, done = RESTING, job.done
        del job  # and with it the arrays that were made
        done.set()
        job = jobs.get()
