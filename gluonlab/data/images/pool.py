"""Processes that decode image files side by side.

Not forks of this one, which would make MXNet replace its engine's workers
(`gluonlab.engine.threads`), but new processes that load Pillow and nothing of MXNet. Pixels come
back through memory that both sides map, paths and messages through pipes.

Start them where MXNet has nothing to do: before Python 3.10 a new process begins as a fork.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
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
from gluonlab.data.images.decode import CHANNELS
from gluonlab.errors import DataError, RunError

if TYPE_CHECKING:
    from gluonlab.data.images.decode import Pixels

Wrong = List[Tuple[int, str]]  # positions of files that cannot be decoded, and why

# images per request: long beside a request's own cost, short beside a batch that several processes
# share
SLOTS = 16


# glibc gives memory back to the system, and takes it again page by page, for every image; here it
# keeps what one image needs.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**26)}


class Decoding:
    """Images (n, 3, size, size) that are being decoded.

    Nobody but `Decoders` makes one, and it keeps them alive.
    """

    def __init__(self, decoders: Decoders, images: "Pixels", parts: "List[_Answer]") -> None:
        self._decoders, self._images, self._parts = decoders, images, parts

    def result(self) -> "Pixels":
        """Wait for the images. Raises DataError for the first that is wrong, RunError for a process
        that has ended, and CancelledError after `cancel`.
        """
        images, wrong = self.good()
        if wrong:
            raise DataError(wrong[min(wrong)])
        return images

    def good(self) -> "Tuple[Pixels, Dict[int, str]]":
        """Wait for the images; for the positions of those that are wrong, which are left as they
        come, the reason.
        """
        try:
            found = [part.result() for part in self._parts]
        finally:
            self.cancel()
        begins = range(0, len(self._images), SLOTS)
        return self._images, {
            begin + slot: reason for begin, wrong in zip(begins, found) for slot, reason in wrong
        }

    def cancel(self) -> None:
        """Leave what has not begun: nobody waits for it."""
        for part in self._parts:
            part.cancel()


class Decoders:
    """``count`` processes that decode images to (3, ``size``, ``size``).

    They end with this object, once what it has begun is not waited for, or with this process.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self._children = [_Child(size) for _ in range(count)]
        self._requests: "queue.SimpleQueue[Optional[_Request]]" = queue.SimpleQueue()
        for child in self._children:
            threading.Thread(
                target=_Server(child, self._requests).run, name="gluonlab-decode", daemon=True
            ).start()
        # call it to end them earlier
        self.close = weakref.finalize(self, _end, self._children, self._requests)

    def begin(self, paths: Sequence[str], seeds: Optional[Sequence[int]] = None) -> Decoding:
        """Have these n files decoded, after all that was begun before; cut at random where there
        are n ``seeds``.

        Raises ValueError once the decoders have been closed.
        """
        images = np.empty((len(paths), CHANNELS, self.size, self.size), np.uint8)
        begins = range(0, len(paths), SLOTS)
        parts = [_Answer() for _ in begins]
        begun = Decoding(self, images, parts)
        try:
            for answer, begin in zip(parts, begins):
                part = slice(begin, begin + SLOTS)
                self._requests.put(
                    _Request(answer, paths[part], seeds and seeds[part], images[part])
                )
            # asked last: another thread may have closed them meanwhile, and nobody serves what
            # comes later
            if not self.close.alive:
                raise ValueError("these decoders have been closed")
        except BaseException:  # that, or Ctrl-C
            begun.cancel()
            raise
        return begun

    def decode(self, paths: Sequence[str], seeds: Optional[Sequence[int]] = None) -> "Pixels":
        """The images (n, 3, size, size) in these files.

        Raises what `begin` and `Decoding.result` do.
        """
        return self.begin(paths, seeds).result()

    def in_turns(
        self, paths: Sequence[str], images: int
    ) -> "Iterator[Tuple[Pixels, Dict[int, str]]]":
        """What is `Decoding.good` of ``images`` files at a time, for sets that do not fit
        memory.
        """
        for begin in range(0, len(paths), images):
            yield self.begin(paths[begin : begin + images]).good()


class _Answer:
    """What becomes of a request: it is given once, to one who waits.

    Not a Future, whose lock both sides take: a Ctrl-C in whoever has just taken it may leave it
    locked, and the thread that serves would wait for it for ever. This one is only opened by that
    thread.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._wrong: Optional[Wrong] = None
        self._error: Optional[BaseException] = None
        self._closed = threading.Lock()
        self._closed.acquire()

    def result(self) -> Wrong:
        """Wait for it. Raises what went wrong, CancelledError for what was given up."""
        if self._wrong is None and self._error is None:
            with self._closed:
                pass
        if self._error is not None:
            raise self._error
        assert self._wrong is not None
        return self._wrong

    def cancel(self) -> None:
        """Nobody needs it, unless it has begun."""
        self.given_up = True

    def set_result(self, wrong: Wrong) -> None:
        self._wrong = wrong
        self._closed.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._closed.release()


class _Request(NamedTuple):
    """At most `SLOTS` files, and where their pixels go."""

    answer: _Answer
    paths: Sequence[str]
    seeds: Optional[Sequence[int]]
    images: "Pixels"


class _Child:
    """A process of `gluonlab.data.images.worker`, which shares memory for two requests' images."""

    def __init__(self, size: int) -> None:
        # has no name in any folder: nothing is left behind, whoever is killed
        fd = os.memfd_create("gluonlab-images")
        try:
            os.ftruncate(fd, 2 * SLOTS * CHANNELS * size**2)
            self.memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8).reshape(
                2 * SLOTS, CHANNELS, size, size
            )
            package = str(Path(gluonlab.__file__).resolve().parent.parent)
            path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gluonlab.data.images.worker",
                    str(fd),
                    str(2 * SLOTS),
                    str(size),
                ],
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

    def ask(self, paths: Sequence[str], seeds: Optional[Sequence[int]], first: int) -> None:
        """Have it decode these files into the memory from the image ``first`` on."""
        assert self.process.stdin is not None
        words = json.dumps({"paths": list(paths), "seeds": seeds and list(seeds), "first": first})
        # closed on its side, or on this one: then it answers nothing
        with suppress(OSError, ValueError):
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()

    def answer(self) -> "Wrong":
        """Wait until it has done what it was asked for; (position, reason) of the files that are
        wrong.
        """
        assert self.process.stdout is not None
        try:
            answer = self.process.stdout.readline()
        except (OSError, ValueError):
            answer = ""
        if not answer:
            status = self.process.wait()
            raise RunError(
                f"a process that decodes images ended with status {status}: "
                "see above, or use fewer with --decoders"
            )
        return [(slot, reason) for slot, reason in json.loads(answer)["wrong"]]


class _Server:
    """Hands requests to one process, the next before the pixels of the last are copied: the work of
    one thread, to which Ctrl-C does not come.

    Not a thread of concurrent.futures, which starts with the first request: a Ctrl-C just then
    leaves it unknown to its pool, and Python waits for it for ever at its end. It knows nothing of
    `Decoders`, which it must not keep alive.
    """

    def __init__(self, child: _Child, requests: "queue.SimpleQueue[Optional[_Request]]") -> None:
        self.child, self.requests = child, requests
        self.first, self.ended = 0, False

    def run(self) -> None:
        """Until there is None instead of a request."""
        asked: Optional[_Request] = None  # what the process is at
        while asked is not None or not self.ended:
            if asked is None:
                asked = self._ask(wait=True)
                continue
            try:
                wrong = self.child.answer()
            except BaseException as error:
                asked.answer.set_exception(error)
                asked = None
                continue
            pixels = self.child.memory[self.first :][: len(asked.paths)]
            done, asked = asked, self._ask(wait=False)
            done.images[:] = pixels
            done.answer.set_result(wrong)
            del done  # the pixels belong to who has asked

    def _ask(self, wait: bool) -> Optional[_Request]:
        """Hand the next request over; None if there is none, or nobody needs it any more."""
        try:
            request = self.requests.get(block=wait)
        except queue.Empty:
            return None
        if request is None:
            self.requests.put(None)  # for the other threads
            self.ended = True
            return None
        if request.answer.given_up:
            request.answer.set_exception(CancelledError())
            return None
        self.first = SLOTS - self.first
        try:
            self.child.ask(request.paths, request.seeds, self.first)
        # such as TypeError for a path that is no str: it has not been asked
        except BaseException as error:
            request.answer.set_exception(error)
            return None
        return request


def _end(children: List[_Child], requests: "queue.SimpleQueue[Optional[_Request]]") -> None:
    """At once, whatever is being decoded: nobody is left to look at it.

    Any thread may come here, one that serves, too.
    """
    requests.put(None)
    for child in children:
        child.process.kill()
    for child in children:
        child.process.wait()
        assert child.process.stdin is not None and child.process.stdout is not None
        with suppress(OSError):  # words that it has not read
            child.process.stdin.close()
        child.process.stdout.close()
