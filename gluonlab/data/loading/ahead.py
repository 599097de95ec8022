"""Batches that a thread makes ahead of those who use them."""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, Generator, Iterator, List, NamedTuple, TypeVar

Item = TypeVar("Item")

WORKING, RESTING = "gluonlab-prefetch", "gluonlab-resting"  # the names of a thread


def ahead(items: "Iterator[Item]", depth: int) -> "Generator[Item, None, None]":
    """``items``, which a thread computes up to ``depth`` ahead.

    Raises what they raise. To stop earlier, close this generator. The thread then waits for
    the next items that anybody in the process wants: MXNet keeps some 5 MB for each thread that
    has queued operators until the process ends, so a new one for each epoch, or for each training,
    would take more and more.
    """
    thread = _rested()
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
        # not when Ctrl-C came before that, nor in a fork's child: there is nothing to wait for
        if given and thread.is_alive():
            stopped.wait()
        _resting.append(thread)


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


class _Thread(threading.Thread):
    """A thread that does one job after another, as long as the process lives."""

    def __init__(self) -> None:
        super().__init__(name=RESTING, daemon=True)
        self.jobs: "queue.SimpleQueue[_Job]" = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            job = self.jobs.get()
            self.name = WORKING
            job.work()
            self.name, done = RESTING, job.done
            del job  # and with it the arrays that were made
            done.set()
            del done


_resting: List[_Thread] = []


def _rested() -> _Thread:
    """A thread that nobody uses, a new one where all work; a fork leaves the child none of them."""
    while _resting:
        thread = _resting.pop()
        if thread.is_alive():
            return thread
    return _Thread()
