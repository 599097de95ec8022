"""Processes that decode image files side by side.

Not forks of this one, which would make MXNet replace its engine's workers (`gluonlab.threads`), but new processes that load Pillow
and nothing of MXNet. Pixels come back through memory that both sides map, paths and messages through pipes.

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
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluonlab
from gluonlab.errors import DataError, RunError
from gluonlab.images.decode import CHANNELS

if TYPE_CHECKING:
    from gluonlab.images.decode import Pixels

Wrong = List[Tuple[int, str]]  # positions of files that cannot be decoded, and why

SLOTS = 16  # images per request: long beside a request's own cost, short beside a batch that several processes share


class Decoders:
    """``count`` processes that decode images to (3, ``size``, ``size``). They end with this object, or with this process."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self._children = [_Child(size) for _ in range(count)]
        self._requests: "queue.SimpleQueue[Optional[_Request]]" = queue.SimpleQueue()
        for child in self._children:
            threading.Thread(target=_serve, args=(child, self._requests), name="gluonlab-decode", daemon=True).start()
        self.close = weakref.finalize(self, _end, self._children, self._requests)  # call it to end them earlier

    def decode(self, paths: Sequence[str], seeds: Optional[Sequence[int]] = None) -> "Pixels":
        """The images (n, 3, size, size) in these n files, cut at random where there are n ``seeds``.

        Raises DataError for the first that is wrong.
        """
        images, wrong = self.decode_good(paths, seeds)
        if wrong:
            raise DataError(wrong[min(wrong)])
        return images

    def decode_good(self, paths: Sequence[str], seeds: Optional[Sequence[int]] = None) -> "Tuple[Pixels, Dict[int, str]]":
        """The images (n, 3, size, size), and for the positions of those that are wrong, which are left as they come, the reason."""
        images = np.empty((len(paths), CHANNELS, self.size, self.size), np.uint8)
        begins = range(0, len(paths), SLOTS)
        parts: "List[Future[Wrong]]" = [Future() for _ in begins]
        if not self.close.alive:
            raise ValueError("these decoders have been closed")
        try:
            for future, begin in zip(parts, begins):
                part = slice(begin, begin + SLOTS)
                self._requests.put(_Request(future, paths[part], seeds and seeds[part], images[part]))
            found = [future.result() for future in parts]
        finally:
            for future in parts:
                future.cancel()  # after an error or Ctrl-C: nobody waits for the rest
        return images, {begin + slot: reason for begin, wrong in zip(begins, found) for slot, reason in wrong}

    def in_turns(self, paths: Sequence[str], images: int) -> "Iterator[Tuple[Pixels, Dict[int, str]]]":
        """``decode_good`` of ``images`` files at a time, for sets that do not fit memory."""
        for begin in range(0, len(paths), images):
            yield self.decode_good(paths[begin : begin + images])


class _Request(NamedTuple):
    """At most `SLOTS` files, and where their pixels go."""

    future: "Future[Wrong]"
    paths: Sequence[str]
    seeds: Optional[Sequence[int]]
    images: "Pixels"


class _Child:
    """A process of `gluonlab.images.worker` and the memory that it shares with this one."""

    def __init__(self, size: int) -> None:
        fd = os.memfd_create("gluonlab-images")  # has no name in any folder: nothing is left behind, whoever is killed
        try:
            os.ftruncate(fd, SLOTS * CHANNELS * size**2)
            self.memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8).reshape(SLOTS, CHANNELS, size, size)
            package = str(Path(gluonlab.__file__).resolve().parent.parent)
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gluonlab.images.worker", str(fd), str(SLOTS), str(size)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[fd],
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent
                encoding="utf-8",
            )
        finally:
            os.close(fd)

    def decode(self, paths: Sequence[str], seeds: Optional[Sequence[int]], images: "Pixels") -> "Wrong":
        """Fill ``images`` from ``paths``; (position, reason) of those that are wrong."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"paths": list(paths), "seeds": seeds and list(seeds)}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except (OSError, ValueError):  # closed on its side, or on this one
            answer = ""
        if not answer:
            status = self.process.wait()
            raise RunError(f"a process that decodes images ended with status {status}: see above, or use fewer with --decoders")
        images[:] = self.memory[: len(paths)]
        return [(slot, reason) for slot, reason in json.loads(answer)["wrong"]]


def _serve(child: _Child, requests: "queue.SimpleQueue[Optional[_Request]]") -> None:
    """One request after the other, until there is None: the work of one thread, to which Ctrl-C does not come.

    Not a thread of concurrent.futures, which starts with the first request: a Ctrl-C just then leaves it unknown to its pool, and
    Python waits for it for ever at its end. Not a method: a thread must not keep `Decoders` alive.
    """
    while True:
        request = requests.get()
        if request is None:
            requests.put(None)  # for the other threads
            return
        if request.future.set_running_or_notify_cancel():
            try:
                request.future.set_result(child.decode(request.paths, request.seeds, request.images))
            except BaseException as error:
                request.future.set_exception(error)
        del request  # the pixels belong to who has asked


def _end(children: List[_Child], requests: "queue.SimpleQueue[Optional[_Request]]") -> None:
    """At once, whatever is being decoded: nobody is left to look at it. Any thread may come here, one that serves, too."""
    requests.put(None)
    for child in children:
        child.process.kill()
    for child in children:
        child.process.wait()
        assert child.process.stdin is not None and child.process.stdout is not None
        with suppress(OSError):  # words that it has not read
            child.process.stdin.close()
        child.process.stdout.close()
