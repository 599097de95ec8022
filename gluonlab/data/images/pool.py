"""Processes that decode image files side by side.

Not forks of this one, which would make MXNet replace its engine's workers
(`gluonlab.engine.threads`), but new processes that load Pillow and nothing of MXNet. Pixels come
back through memory that both sides map, paths and messages through pipes.

Start them where MXNet has nothing to do: before Python 3.10 a new process begins as a fork.
"""

from __future__ import annotations

import queue
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.images.decode import CHANNELS
from gluonlab.data.images.places import Place
from gluonlab.data.images.resize import resolve_resizer
from gluonlab.data.images.serving import SLOTS, Answer, Child, Request, Server
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.images.decode import Pixels
    from gluonlab.data.images.serving import Requests


class Decoding:
    """Images (n, 3, size, size) that are being decoded.

    Only `Decoders` makes one, which keeps the decoders alive.
    """

    def __init__(self, decoders: Decoders, images: "Pixels", parts: "List[Answer]") -> None:
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
    ``resizer``: one of `gluonlab.data.images.resize`, by default the usual one; DataError if it is
    not installed.
    """

    def __init__(self, size: int, count: int, resizer: Optional[str] = None) -> None:
        self.size, self.count, self.resizer = size, count, resolve_resizer(resizer)
        self._children = [Child(size, self.resizer) for _ in range(count)]
        self._requests: "Requests" = queue.SimpleQueue()
        for child in self._children:
            work = Server(child, self._requests).run
            threading.Thread(target=work, name="gluonlab-decode", daemon=True).start()
        # call it to end them earlier
        self.close = weakref.finalize(self, _end, self._children, self._requests)

    def begin(self, paths: Sequence[Place], seeds: Optional[Sequence[int]] = None) -> Decoding:
        """Have these n files decoded, after all that was begun before.

        ``seeds``: n, for random crops. Raises ValueError once the decoders have been closed.
        """
        images = np.empty((len(paths), CHANNELS, self.size, self.size), np.uint8)
        begins = range(0, len(paths), SLOTS)
        parts = [Answer() for _ in begins]
        begun = Decoding(self, images, parts)
        try:
            for answer, begin in zip(parts, begins):
                at = slice(begin, begin + SLOTS)
                self._requests.put(Request(answer, paths[at], seeds and seeds[at], images[at]))
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


def _end(children: List[Child], requests: "Requests") -> None:
    """End the processes at once, in any thread: nobody is left to look at what they decode."""
    requests.put(None)
    for child in children:
        child.process.kill()
    for child in children:
        child.process.wait()
        assert child.process.stdin is not None and child.process.stdout is not None
        with suppress(OSError):  # words that it has not read
            child.process.stdin.close()
        child.process.stdout.close()
