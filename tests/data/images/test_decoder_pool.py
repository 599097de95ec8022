"""Decoder processes: the same pixels in the same order, and no process outlives its pool."""

import fcntl
import gc
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.covering import long_cases
from support.image_folders import write_image_folder
from support.processes import clean_environment
from support.waiting import LIMIT_S, interrupt_once_read, wait_until
from support.worker_processes import has_exited

from gluonlab.data.images.decode_image import decode_image
from gluonlab.data.images.decoder_pool import REQUEST_IMAGES, DecodeFuture, DecodeRequest, DecoderPool
from gluonlab.errors import DataError, RunError


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = write_image_folder(tmp_path_factory.mktemp("images") / "set", train=15, val=1)
    return sorted(map(str, (root / "train").rglob("*.jpg")))


@pytest.fixture(scope="module")
def decoders():
    pool = DecoderPool(16, 2)
    yield pool
    pool.close()


@pytest.fixture
def single():
    """Decoders of one process."""
    pool = DecoderPool(16, 1)
    yield pool
    pool.close()


def pids(decoders):
    return [worker.process.pid for worker in decoders._workers]


def wait_for_result(future):
    """Return the images, or the exception, without waiting forever."""
    outcome = Future()

    def copy_result():
        try:
            outcome.set_result(future.result())
        except Exception as error:
            outcome.set_result(error)

    threading.Thread(target=copy_result, daemon=True).start()
    return outcome.result(LIMIT_S)


@pytest.mark.parametrize("count", [0, 1, REQUEST_IMAGES, REQUEST_IMAGES + 1, 45])
def test_the_images_come_in_the_order_of_their_files(decoders, paths, count):
    images = decoders.decode(paths[:count])
    assert images.shape == (count, 3, 16, 16)
    assert all(np.array_equal(image, decode_image(path, 16)) for image, path in zip(images, paths))


def test_several_threads_may_ask_at_once(decoders, paths):
    expected = decoders.decode(paths)
    with ThreadPoolExecutor(4) as threads:
        assert all(np.array_equal(images, expected) for images in threads.map(decoders.decode, [paths] * 4))


@pytest.mark.parametrize("count", [1, *long_cases(2), 3])
def test_results_can_be_read_in_any_order(paths, count):
    """Each process has memory for two requests, which it fills in turns."""
    pool = DecoderPool(16, count)
    expected = np.stack([decode_image(path, 16) for path in paths])
    futures = {first: pool.submit(paths[first:]) for first in (0, 5, 20, 44, 45)}
    for first in (20, 45, 0, 44, 5):
        assert np.array_equal(futures[first].result(), expected[first:])
    pool.close()


def test_a_request_that_cannot_be_sent_is_an_error_and_not_a_hang(single, paths):
    """A path that is no str, a seed that is no int."""
    for request in (([Path("a.jpg")], None), (["a.jpg"], [np.uint32(1)])):
        before, wrong, after = single.submit(paths[:1]), single.submit(*request), single.submit(paths[:1])
        assert "not JSON serializable" in str(wait_for_result(wrong))
        for future in (before, after):
            assert np.array_equal(wait_for_result(future)[0], decode_image(paths[0], 16))


def test_cancelled_requests_are_not_decoded(single, tmp_path, paths):
    """The first file is a pipe: while it is waited for, the rest is left."""
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    first, second = single.submit([str(pipe)]), single.submit(paths)
    second.cancel()
    third = single.submit(paths[:1])
    held = os.open(pipe, os.O_RDWR)
    os.write(held, b"no image" * 4)
    wait_until(lambda: fcntl.ioctl(held, termios.FIONREAD, bytes(4)) == bytes(4))  # it is read
    os.close(held)
    with pytest.raises(DataError, match="not a JPEG, PNG"):
        first.result()
    assert np.array_equal(third.result()[0], decode_image(paths[0], 16))
    with pytest.raises(CancelledError):
        second.result()


def test_the_first_damaged_file_is_the_error_and_the_next_batch_is_decoded(decoders, paths, tmp_path):
    wrong = [tmp_path / "b.jpg", tmp_path / "a.jpg"]
    [path.write_bytes(b"no image") for path in wrong]
    mixed = [*paths[:20], str(wrong[0]), *paths[20:], str(wrong[1])]
    with pytest.raises(DataError, match=re.escape(f"{wrong[0]} is not a JPEG, PNG")):
        decoders.decode(mixed)
    images, bad = decoders.submit(mixed).result_with_errors()
    assert sorted(bad) == [20, 46]
    assert np.array_equal(np.delete(images, [20, 46], axis=0), decoders.decode(paths))


def test_names_of_files_may_be_anything(decoders, paths, tmp_path):
    strange = shutil.copy(paths[0], tmp_path / 'a "quoted"\nline\\ \u00e4\u732b.jpg')
    assert np.array_equal(decoders.decode([str(strange)])[0], decode_image(paths[0], 16))


def test_the_processes_end_with_the_last_reference_to_the_pool_or_a_future(paths):
    pool = DecoderPool(16, 2)
    processes, future = pids(pool), pool.submit(paths)
    del pool
    assert not any(map(has_exited, processes))
    assert np.array_equal(future.result(), np.stack([decode_image(path, 16) for path in paths]))
    del future
    gc.collect()
    assert all(map(has_exited, processes))


def test_dropping_the_pool_while_it_decodes_ends_the_processes(paths, monkeypatch):
    """A Ctrl-C drops the object while its threads are busy."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    pool = DecoderPool(1024, 1)
    processes = pids(pool)

    class Interrupted(list):
        def __getitem__(self, part):
            if part.start:
                raise KeyboardInterrupt
            return super().__getitem__(part)

    with pytest.raises(KeyboardInterrupt):
        pool.decode(Interrupted(paths * 2))
    del pool
    gc.collect()
    wait_until(lambda: all(map(has_exited, processes)))
    assert unraisable == []


def test_after_ctrl_c_no_process_continues_to_decode(tmp_path):
    """The files are pipes that nobody writes to: reading one takes for ever."""
    pipes = [str(tmp_path / f"{number}.jpg") for number in range(3 * REQUEST_IMAGES)]
    [os.mkfifo(path) for path in pipes]
    pool = DecoderPool(8, 2)
    processes, ends = pids(pool), []
    interrupting = threading.Thread(target=interrupt_once_read, args=[pipes[0], ends])
    with pytest.raises(KeyboardInterrupt):
        interrupting.start()
        pool.decode(pipes)
    interrupting.join()
    assert not any(map(has_exited, processes))
    del pool
    gc.collect()
    assert all(map(has_exited, processes))
    os.close(ends[0])


def test_after_ctrl_c_at_any_line_the_next_images_are_decoded(single, paths):
    """A signal is handled before a line, or when a function has returned."""
    expected = decode_image(paths[0], 16)

    def interrupted(event):
        left = itertools.count(event, -1)

        def trace(frame, what, arg):
            if next(left) == 0:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            single.decode(paths[: REQUEST_IMAGES + 1])
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    event = 0
    while interrupted(event):
        event += 1
        assert np.array_equal(wait_for_result(single.submit(paths[:1]))[0], expected)
    assert event > 20


def test_the_last_reference_may_be_dropped_by_one_of_its_own_threads(paths):
    """The garbage collector runs in any thread."""
    pool = DecoderPool(8, 2)
    processes, closed = pids(pool), []

    class Dropping(DecodeFuture):
        def set(self, outcome):
            closed.append(pool.close())
            super().set(outcome)

    pool._requests.put(DecodeRequest(Dropping(), paths[:1], None, np.empty((1, 3, 8, 8), np.uint8)))
    wait_until(lambda: closed)
    assert all(map(has_exited, processes))
    with pytest.raises(ValueError, match="closed"):
        pool.decode(paths[:1])


def test_closing_during_a_submit_is_an_error_and_not_a_hang(single, paths):
    """Another thread may close the pool."""

    class Closing(list):
        def __getitem__(self, part):
            if part.start:
                single.close()
            return super().__getitem__(part)

    with pytest.raises(ValueError, match="closed"):
        single.submit(Closing(paths))


def test_decoding_starts_no_thread_and_its_processes_do_not_load_mxnet(decoders, paths):
    """A Ctrl-C while a thread is being started would leave one that nobody ends."""
    before = set(threading.enumerate())
    decoders.decode(paths)
    assert set(threading.enumerate()) <= before
    assert not any("libmxnet" in Path(f"/proc/{pid}/maps").read_text() for pid in pids(decoders))


def test_python_exits_while_decoders_are_busy(python, tmp_path):
    """After a Ctrl-C, the traceback keeps the decoders. The file is a pipe without a writer."""
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    program = (
        "import threading\nfrom gluonlab.data.images.decoder_pool import DecoderPool\n"
        "from support.waiting import interrupt_once_read\npool = DecoderPool(16, 2)\n"
        "threading.Thread(target=interrupt_once_read, args=['pipe.jpg', []]).start()\n"
        "pool.decode(['pipe.jpg'])"
    )
    try:
        ended = python("-c", program)
    finally:
        pipe.unlink()  # whoever opens it later finds nothing
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_a_killed_process_is_an_error_and_not_a_hang(single, paths):
    single.decode(paths[:1])
    os.kill(pids(single)[0], signal.SIGKILL)
    with pytest.raises(RunError, match="a process that decodes images was killed, probably because memory is low"):
        single.decode(paths)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=lambda sign: sign.name)
def test_the_processes_end_with_their_parent_however_it_ends(tmp_path, sign):
    program = (
        "from gluonlab.data.images.decoder_pool import DecoderPool\n"
        "import sys, time\npool = DecoderPool(16, 2)\n"
        "print(*[worker.process.pid for worker in pool._workers], flush=True)\ntime.sleep(600)"
    )
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    command = [sys.executable, "-c", program]
    parent = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), **pipes)
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.send_signal(sign)
    parent.communicate(timeout=LIMIT_S)
    wait_until(lambda: all(map(has_exited, children)))


def test_a_process_whose_parent_has_ended_exits_silently(paths):
    """The parent ended while the process was decoding."""
    fd = os.memfd_create("images")
    os.ftruncate(fd, REQUEST_IMAGES * 3 * 16**2)
    words = ["gluonlab.data.images.decoder_process", str(fd), str(REQUEST_IMAGES), "16", "0", "pillow"]
    command = [sys.executable, "-m", *words]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child = subprocess.Popen(command, env=clean_environment(), pass_fds=[fd], **pipes)
    os.close(fd)
    child.stdout.close()
    child.stdin.write(json.dumps({"paths": paths[:1], "seeds": None, "first": 0}).encode() + b"\n")
    child.stdin.close()
    assert (child.stderr.read(), child.wait(LIMIT_S)) == (b"", 0)
    child.stderr.close()


def test_allocator_variables_of_the_user_take_precedence(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    pool = DecoderPool(8, 1)
    environ = Path(f"/proc/{pids(pool)[0]}/environ")
    wait_until(environ.read_text)  # a process that has just begun shows none yet
    variables = environ.read_text().split("\0")
    pool.close()
    assert {"MALLOC_TRIM_THRESHOLD_=65536", f"MALLOC_MMAP_THRESHOLD_={2**25}"} <= {*variables}
