"""Processes that decode image files side by side.

Not forks of this one, which would make MXNet replace its engine's workers
(`gluonlab.engine.cpu_threads`), but new processes that load Pillow and nothing of MXNet. Pixels
come back through memory that both sides map, paths and messages through pipes.

Start them where MXNet has nothing to do: before Python 3.10 a new process begins as a fork.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluonlab
from gluonlab.data.images.decode_image import CHANNELS
from gluonlab.data.images.image_locations import Place
from gluonlab.data.images.resize_image import resolve_resizer
from gluonlab.data.images.turbojpeg import agrees
from gluonlab.errors import DataError, RunError
from gluonlab.host.resources import keep_freed_variables

if TYPE_CHECKING:
    from gluonlab.data.images.decode_image import Pixels

    Requests = queue.SimpleQueue["Optional[DecodeRequest]"]

Wrong = List[Tuple[int, str]]  # positions of files that cannot be decoded, and why

# images per request: long beside a request's own cost, short beside a batch that several processes
# share
SLOTS = 16
KEEP_MEMORY = keep_freed_variables(2**26)  # bytes: what one image needs


class Decoding:
    """Images (n, 3, size, size) that are being decoded.

    Only `Decoders` makes one, which keeps the decoders alive.
    """

    def __init__(self, decoders: Decoders, images: "Pixels", parts: "List[DecodeFuture]") -> None:
        self._decoders, self._images, self._parts = decoders, images, parts

    def result(self) -> "Pixels":
        """Wait for the images.

        Raises DataError for the first that is wrong, RunError for a process that has ended, and
        CancelledError after `cancel`.
        """
        images, wrong = self.good()
        if wrong:
            raise DataError(wrong[min(wrong)])
        return images

    def good(self) -> "Tuple[Pixels, Dict[int, str]]":
        """Wait for the images; position -> reason of those that are wrong, whose pixels are any."""
        try:
            outcomes = [part.result() for part in self._parts]
        finally:
            self.cancel()
        begins = range(0, len(self._images), SLOTS)
        return self._images, {
            begin + slot: reason for begin, wrong in zip(begins, outcomes) for slot, reason in wrong
        }

    def cancel(self) -> None:
        """Cancel what has not begun."""
        for part in self._parts:
            part.cancel()


class Decoders:
    """``count`` processes that decode images to (3, ``size``, ``size``).

    They end with this object, once what it has begun is not waited for, or with this process.
    ``resizer``: one of `gluonlab.data.images.resize_image`, by default the usual one; DataError if
    it is not installed.
    """

    def __init__(self, size: int, count: int, resizer: Optional[str] = None) -> None:
        self.size, self.count, self.resizer = size, count, resolve_resizer(resizer)
        self._workers = [DecodeWorker(size, self.resizer) for _ in range(count)]
        self._requests: "Requests" = queue.SimpleQueue()
        for worker in self._workers:
            work = Server(worker, self._requests).run
            threading.Thread(target=work, name="gluonlab-decode", daemon=True).start()
        # call it to end them earlier
        self.close = weakref.finalize(self, _end, self._workers, self._requests)

    def begin(self, paths: Sequence[Place], seeds: Optional[Sequence[int]] = None) -> Decoding:
        """Have these n files decoded, after all that was begun before.

        ``seeds``: n, for random crops. Raises ValueError once the decoders have been closed.
        """
        images = np.empty((len(paths), CHANNELS, self.size, self.size), np.uint8)
        begins = range(0, len(paths), SLOTS)
        parts = [DecodeFuture() for _ in begins]
        begun = Decoding(self, images, parts)
        try:
            for answer, begin in zip(parts, begins):
                at = slice(begin, begin + SLOTS)
                self._requests.put(
                    DecodeRequest(answer, paths[at], seeds and seeds[at], images[at])
                )
            # checked last: another thread may have closed them meanwhile, and nobody serves what
            # comes later
            if not self.close.alive:
                raise ValueError("these decoders have been closed")
        except BaseException:  # that, or Ctrl-C
            begun.cancel()
            raise
        return begun

    def decode(self, paths: Sequence[Place], seeds: Optional[Sequence[int]] = None) -> "Pixels":
        """The images (n, 3, size, size) in these files.

        Raises what `begin` and `Decoding.result` do.
        """
        return self.begin(paths, seeds).result()

    def in_turns(
        self, paths: Sequence[Place], images: int
    ) -> "Iterator[Tuple[Pixels, Dict[int, str]]]":
        """`Decoding.good` of ``images`` files at a time, for sets that do not fit memory."""
        for begin in range(0, len(paths), images):
            yield self.begin(paths[begin : begin + images]).good()


def _end(workers: List[DecodeWorker], requests: "Requests") -> None:
    """End the processes at once, in any thread: nobody is left to look at what they decode."""
    requests.put(None)
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        assert worker.process.stdin is not None and worker.process.stdout is not None
        with suppress(OSError):  # words that it has not read
            worker.process.stdin.close()
        worker.process.stdout.close()


# --- one process, and the thread that hands requests to it


class DecodeFuture:
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


class DecodeRequest(NamedTuple):
    """At most `SLOTS` files, and where their pixels go."""

    answer: DecodeFuture
    paths: Sequence[Place]
    seeds: Optional[Sequence[int]]
    images: "Pixels"


class DecodeWorker:
    """A process of `gluonlab.data.images.decoder_process`, which shares memory for two requests'
    images.
    """

    def __init__(self, size: int, resizer: str) -> None:
        # has no name in any folder: nothing is left behind, whoever is killed
        fd = os.memfd_create("gluonlab-images")
        try:
            os.ftruncate(fd, 2 * SLOTS * CHANNELS * size**2)
            memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
            self.memory = memory.reshape(2 * SLOTS, CHANNELS, size, size)
            package = str(Path(gluonlab.__file__).resolve().parent.parent)
            path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            words = [
                "-m",
                "gluonlab.data.images.decoder_process",
                str(fd),
                str(2 * SLOTS),
                str(size),
            ]
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

    def __init__(self, worker: DecodeWorker, requests: "Requests") -> None:
        self.worker, self.requests = worker, requests
        self.first, self.ended = 0, False

    def run(self) -> None:
        """Until there is None instead of a request."""
        current: Optional[DecodeRequest] = None  # what the process is at
        while current is not None or not self.ended:
            if current is None:
                current = self._hand_over(wait=True)
                continue
            try:
                wrong = self.worker.answer()
            except BaseException as error:
                current.answer.set(error)
                current = None
                continue
            pixels = self.worker.memory[self.first :][: len(current.paths)]
            done, current = current, self._hand_over(wait=False)
            done.images[:] = pixels
            done.answer.set(wrong)
            del done  # the pixels belong to who made the request

    def _hand_over(self, wait: bool) -> Optional[DecodeRequest]:
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
            self.worker.ask(request.paths, request.seeds, self.first)
        # such as TypeError for a path that is no str: the process knows nothing of it
        except BaseException as error:
            request.answer.set(error)
            return None
        return request
