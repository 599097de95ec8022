"""One process that decodes image files, and the thread that hands requests to it."""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluonlab
from gluonlab.data.images.decode import CHANNELS
from gluonlab.data.images.places import Place
from gluonlab.data.images.quick import agrees
from gluonlab.errors import RunError
from gluonlab.host.resources import keeping

if TYPE_CHECKING:
    from gluonlab.data.images.decode import Pixels

    Requests = queue.SimpleQueue["Optional[Request]"]

Wrong = List[Tuple[int, str]]  # positions of files that cannot be decoded, and why

# images per request: long beside a request's own cost, short beside a batch that several processes
# share
SLOTS = 16
KEEP_MEMORY = keeping(2**26)  # bytes: what one image needs


class Answer:
    """A request's outcome: set once, read by one waiter.

    Not a Future, whose lock both sides take: a Ctrl-C in whoever has just taken it may leave it
    locked, and the thread that serves would wait for it for ever. This one is only opened by that
    thread.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._outcome: "Wrong | BaseException | None" = None
        self._closed = threading.Lock()
        self._closed.acquire()

    def result(self) -> Wrong:
        """Wait for the outcome. Raises what went wrong, CancelledError for a cancelled request."""
        if self._outcome is None:
            with self._closed:
                pass
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def cancel(self) -> None:
        """Cancel the request, unless it has begun."""
        self.cancelled = True

    def set(self, outcome: "Wrong | BaseException") -> None:
        """What is wrong with the request's files, or the error that ended it."""
        self._outcome = outcome
        self._closed.release()


class Request(NamedTuple):
    """At most `SLOTS` files, and where their pixels go."""

    answer: Answer
    paths: Sequence[Place]
    seeds: Optional[Sequence[int]]
    images: "Pixels"


class Child:
    """A process of `gluonlab.data.images.worker`, which shares memory for two requests' images."""

    def __init__(self, size: int, resizer: str) -> None:
        # has no name in any folder: nothing is left behind, whoever is killed
        fd = os.memfd_create("gluonlab-images")
        try:
            os.ftruncate(fd, 2 * SLOTS * CHANNELS * size**2)
            memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
            self.memory = memory.reshape(2 * SLOTS, CHANNELS, size, size)
            package = str(Path(gluonlab.__file__).resolve().parent.parent)
            path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            words = ["-m", "gluonlab.data.images.worker", str(fd), str(2 * SLOTS), str(size)]
            words += [str(int(agrees())), resizer]
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[fd],
                # what somebody has set is meant
                env={**KEEP_MEMORY, **os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent
                encoding="utf-8",
            )
        finally:
            os.close(fd)

    def ask(self, paths: Sequence[Place], seeds: Optional[Sequence[int]], first: int) -> None:
        """Have it decode these files into the memory from the image ``first`` on."""
        assert self.process.stdin is not None
        words = json.dumps({"paths": list(paths), "seeds": seeds and list(seeds), "first": first})
        # closed on its side, or on this one: then it answers nothing
        with suppress(OSError, ValueError):
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()

    def answer(self) -> "Wrong":
        """Wait until the request is done; (position, reason) of the files that are wrong.

        Raises RunError when the process has ended.
        """
        assert self.process.stdout is not None
        try:
            answer = self.process.stdout.readline()
        except (OSError, ValueError):
            answer = ""
        if not answer:
            status = self.process.wait()
            how = (
                "was killed, as the system does when memory is short: use fewer"
                if status == -signal.SIGKILL
                else f"ended with status {status}: see above, or use fewer"
            )
            raise RunError(f"a process that decodes images {how} with --decoders")
        return [(slot, reason) for slot, reason in json.loads(answer)["wrong"]]


class Server:
    """Hands requests to one process, the next before the last one's pixels are copied.

    The work of one thread, to which Ctrl-C does not come. Not a thread of concurrent.futures, which
    starts with the first request: a Ctrl-C just then leaves it unknown to its pool, and Python
    waits for it for ever at its end. It knows nothing of `Decoders`, which it must not keep alive.
    """

    def __init__(self, child: Child, requests: "Requests") -> None:
        self.child, self.requests = child, requests
        self.first, self.ended = 0, False

    def run(self) -> None:
        """Until there is None instead of a request."""
        current: Optional[Request] = None  # what the process is at
        while current is not None or not self.ended:
            if current is None:
                current = self._hand_over(wait=True)
                continue
            try:
                wrong = self.child.answer()
            except BaseException as error:
                current.answer.set(error)
                current = None
                continue
            pixels = self.child.memory[self.first :][: len(current.paths)]
            done, current = current, self._hand_over(wait=False)
            done.images[:] = pixels
            done.answer.set(wrong)
            del done  # the pixels belong to who made the request

    def _hand_over(self, wait: bool) -> Optional[Request]:
        """Give the process the next request; None if there is none, or nobody needs it any more."""
        try:
            request = self.requests.get(block=wait)
        except queue.Empty:
            return None
        if request is None:
            self.requests.put(None)  # for the other threads
            self.ended = True
            return None
        if request.answer.cancelled:
            request.answer.set(CancelledError())
            return None
        self.first = SLOTS - self.first
        try:
            self.child.ask(request.paths, request.seeds, self.first)
        # such as TypeError for a path that is no str: the process knows nothing of it
        except BaseException as error:
            request.answer.set(error)
            return None
        return request
