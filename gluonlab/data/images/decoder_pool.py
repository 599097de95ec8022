"""A pool of processes that decode image files.

The pool starts new processes, which load Pillow but not MXNet. The pool does not fork this process,
because a fork makes MXNet replace its engine's workers (`gluonlab.engine.cpu_threads`). Pixels are
returned through shared memory. Paths and messages are sent through pipes.

Start the pool while MXNet is idle, because before Python 3.10 a new process starts as a fork.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluonlab
from gluonlab.data.images.decode_image import CHANNELS
from gluonlab.data.images.image_locations import ImageLocation
from gluonlab.data.images.resize_image import resolve_resizer
from gluonlab.data.images.turbojpeg import matches_pillow
from gluonlab.errors import DataError, RunError
from gluonlab.host.resources import keep_freed_variables

if TYPE_CHECKING:
    from gluonlab.data.images.decode_image import Pixels

    Requests = queue.SimpleQueue["Optional[DecodeRequest]"]

DecodeErrors = List[Tuple[int, str]]  # position and error message of files with errors

# So many that the overhead of a request does not matter, and so few that several processes can
# share a batch.
REQUEST_IMAGES = 16
ALLOCATOR_VARIABLES = keep_freed_variables(2**26)  # bytes, enough for one image


class PendingImages:
    """Images (n, 3, size, size) that are being decoded, as returned by `DecoderPool.submit`.

    This object keeps the pool alive.
    """

    def __init__(self, pool: DecoderPool, images: "Pixels", futures: "List[DecodeFuture]") -> None:
        self._pool, self._images, self._futures = pool, images, futures

    def result(self) -> "Pixels":
        """Wait for the images, and return them.

        Raises DataError for the first file with an error, RunError if a decoder process has ended,
        and CancelledError after `cancel`.
        """
        images, errors = self.result_with_errors()
        if errors:
            raise DataError(errors[min(errors)])
        return images

    def result_with_errors(self) -> "Tuple[Pixels, Dict[int, str]]":
        """Wait for the images.

        Return the images, and {position: message} for the files with errors.

        The pixels of files with errors are undefined.
        """
        try:
            all_errors = [future.result() for future in self._futures]
        finally:
            self.cancel()
        begins = range(0, len(self._images), REQUEST_IMAGES)
        return self._images, {
            begin + slot: reason for begin, errors in zip(begins, all_errors) for slot, reason in errors
        }

    def cancel(self) -> None:
        """Cancel the requests that have not started yet."""
        for future in self._futures:
            future.cancel()


class DecoderPool:
    """A pool of ``count`` processes that decode images to (3, ``size``, ``size``).

    The processes are killed when the pool and its last `PendingImages` are no longer referenced.
    The processes also end when this process ends. ``resizer``: see
    `gluonlab.data.images.resize_image.resolve_resizer`.
    """

    def __init__(self, size: int, count: int, resizer: Optional[str] = None) -> None:
        self.size, self.count, self.resizer = size, count, resolve_resizer(resizer)
        self._workers = [DecodeWorker(size, self.resizer) for _ in range(count)]
        self._requests: "Requests" = queue.SimpleQueue()
        for worker in self._workers:
            work = RequestDispatcher(worker, self._requests).run
            threading.Thread(target=work, name="gluonlab-decode", daemon=True).start()
        # Call ``close()`` to kill the processes earlier.
        self.close = weakref.finalize(self, _stop_workers, self._workers, self._requests)

    def submit(self, paths: Sequence[ImageLocation], seeds: Optional[Sequence[int]] = None) -> PendingImages:
        """Queue the files for decoding, and return at once.

        ``seeds``: one seed per file for random crops, or None for central squares. Raises
        ValueError if the pool has been closed.
        """
        images = np.empty((len(paths), CHANNELS, self.size, self.size), np.uint8)
        begins = range(0, len(paths), REQUEST_IMAGES)
        futures = [DecodeFuture() for _ in begins]
        pending = PendingImages(self, images, futures)
        try:
            for future, begin in zip(futures, begins):
                part = slice(begin, begin + REQUEST_IMAGES)
                self._requests.put(DecodeRequest(future, paths[part], seeds and seeds[part], images[part]))
            # Checked last: another thread may have closed the pool in the meantime, and later
            # requests would never be answered.
            if not self.close.alive:
                raise ValueError("this decoder pool is closed")
        except BaseException:  # the ValueError, or Ctrl-C
            pending.cancel()
            raise
        return pending

    def decode(self, paths: Sequence[ImageLocation], seeds: Optional[Sequence[int]] = None) -> "Pixels":
        """Decode the files ``paths`` to images (n, 3, size, size).

        Raises the errors of `submit` and `PendingImages.result`.
        """
        return self.submit(paths, seeds).result()

    def decode_in_chunks(
        self, paths: Sequence[ImageLocation], chunk_size: int
    ) -> "Iterator[Tuple[Pixels, Dict[int, str]]]":
        """Decode ``chunk_size`` files at a time. Yield images and {position: error message}."""
        for begin in range(0, len(paths), chunk_size):
            yield self.submit(paths[begin : begin + chunk_size]).result_with_errors()


def _stop_workers(workers: List[DecodeWorker], requests: "Requests") -> None:
    """Kill the processes, and end the threads that send them requests.

    Any thread can call this function.
    """
    requests.put(None)
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        assert worker.process.stdin is not None and worker.process.stdout is not None
        with suppress(OSError):  # the pipe may contain unsent requests
            worker.process.stdin.close()
        worker.process.stdout.close()


# --- a process, and the thread that sends requests to it


class DecodeFuture:
    """The outcome of a request, set once by the dispatching thread and read by one waiting thread.

    This class replaces concurrent.futures.Future, in which both threads acquire the same lock. A
    Ctrl-C in the waiting thread could leave that lock locked, so that the dispatching thread would
    wait forever. In this class, the dispatching thread only releases locks, and never waits for a
    lock.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._outcome: "DecodeErrors | BaseException | None" = None
        self._closed = threading.Lock()
        self._closed.acquire()

    def result(self) -> DecodeErrors:
        """Wait until the request is done, and return the errors in its files.

        Raises the exception that ended the request, or CancelledError if it was canceled.
        """
        if self._outcome is None:
            with self._closed:
                pass
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def cancel(self) -> None:
        """Cancel the request unless it has started."""
        self.cancelled = True

    def set(self, outcome: "DecodeErrors | BaseException") -> None:
        """Set the errors of the files, or the exception that ended the request."""
        self._outcome = outcome
        self._closed.release()


class DecodeRequest(NamedTuple):
    """At most `REQUEST_IMAGES` files to decode, and the array for their pixels."""

    future: DecodeFuture
    paths: Sequence[ImageLocation]
    seeds: Optional[Sequence[int]]
    images: "Pixels"


def _create_shared_file() -> int:
    """Create an empty file without a name, in memory on Linux. Return its file descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gluonlab-images")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class DecodeWorker:
    """A decoder process (`gluonlab.data.images.decoder_process`), and its shared memory.

    The memory has room for the images of two requests.
    """

    def __init__(self, size: int, resizer: str) -> None:
        # An anonymous file, because the system frees it even if a process is killed.
        fd = _create_shared_file()
        try:
            os.ftruncate(fd, 2 * REQUEST_IMAGES * CHANNELS * size**2)
            memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
            self.memory = memory.reshape(2 * REQUEST_IMAGES, CHANNELS, size, size)
            package = str(Path(gluonlab.__file__).resolve().parent.parent)
            path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            options = ["-m", "gluonlab.data.images.decoder_process", str(fd), str(2 * REQUEST_IMAGES), str(size)]
            options += [str(int(matches_pillow())), resizer]
            self.process = subprocess.Popen(
                [sys.executable, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[fd],
                # variables of the user override ALLOCATOR_VARIABLES
                env={**ALLOCATOR_VARIABLES, **os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is handled by the parent
                encoding="utf-8",
            )
        finally:
            os.close(fd)

    def send_request(self, paths: Sequence[ImageLocation], seeds: Optional[Sequence[int]], first: int) -> None:
        """Request that files be decoded into the shared memory, from image number ``first`` on."""
        assert self.process.stdin is not None
        request = json.dumps({"paths": list(paths), "seeds": seeds and list(seeds), "first": first})
        # If the pipe is closed on either side, `read_response` raises the error.
        with suppress(OSError, ValueError):
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()

    def read_response(self) -> "DecodeErrors":
        """Wait until the request is done. Return (position, message) for each file with an error.

        Raises RunError if the process has ended.
        """
        assert self.process.stdout is not None
        try:
            response = self.process.stdout.readline()
        except (OSError, ValueError):
            response = ""
        if not response:
            status = self.process.wait()
            is_killed = status == -signal.SIGKILL
            end = "was killed, probably because memory is low" if is_killed else f"exited with status {status}"
            remedy = "use fewer processes with --workers"
            advice = remedy if is_killed else f"see its output above, or {remedy}"
            raise RunError(f"a process that decodes images {end}: {advice}")
        return [(slot, reason) for slot, reason in json.loads(response)["wrong"]]


class RequestDispatcher:
    """Sends requests to one process. The loop `run` is executed by a thread.

    The next request is sent before the pixels of the previous request are copied. The dispatcher
    has no reference to `DecoderPool`, because that would keep the pool alive.

    The thread is not from a concurrent.futures executor, which starts threads on the first request.
    If Ctrl-C interrupted this start, the executor would lose the thread, and Python would wait for
    the thread forever at exit.
    """

    def __init__(self, worker: DecodeWorker, requests: "Requests") -> None:
        self.worker, self.requests = worker, requests
        self.first, self.ended = 0, False

    def run(self) -> None:
        """Process requests until None is read from the queue."""
        current: Optional[DecodeRequest] = None  # the request that the process works on
        while current is not None or not self.ended:
            if current is None:
                current = self._send_next(wait=True)
                continue
            try:
                errors = self.worker.read_response()
            except BaseException as error:
                current.future.set(error)
                current = None
                continue
            pixels = self.worker.memory[self.first :][: len(current.paths)]
            done, current = current, self._send_next(wait=False)
            done.images[:] = pixels
            done.future.set(errors)
            del done  # so that the pixels are freed when the caller drops them

    def _send_next(self, wait: bool) -> Optional[DecodeRequest]:
        """Send the next request in the queue to the process. Return the request, or None.

        ``wait``: whether to wait for a request if the queue is empty.
        """
        try:
            request = self.requests.get(block=wait)
        except queue.Empty:
            return None
        if request is None:
            self.requests.put(None)  # for the other threads
            self.ended = True
            return None
        if request.future.cancelled:
            request.future.set(CancelledError())
            return None
        self.first = REQUEST_IMAGES - self.first
        try:
            self.worker.send_request(request.paths, request.seeds, self.first)
        # Such as TypeError for a path that is not a str. In this case nothing was sent.
        except BaseException as error:
            request.future.set(error)
            return None
        return request
