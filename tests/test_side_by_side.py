"""Tests that measure time have the machine to themselves, however many processes run tests."""

import fcntl
import threading
import time

import pytest
from support.side_by_side import Turns
from support.waiting import LIMIT_S, wait_until


@pytest.fixture
def process(tmp_path):
    """``process(*alone)``: a process's tests as a thread, and what it notes when each begins and
    ends.
    """
    noted, threads = [], []

    def run(turns, tests, in_the_first):
        for number, alone in enumerate(tests):
            with turns.turn(alone):
                noted.append((alone, 1))
                if number == 0:
                    in_the_first()
                time.sleep(0.002)
                noted.append((alone, -1))

    def start(*tests, in_the_first=lambda: None):
        threads.append(threading.Thread(target=run, args=(Turns(tmp_path), tests, in_the_first)))
        threads[-1].start()

    def end():
        for thread in threads:
            thread.join()
        return noted

    yield start, end
    end()


def test_nothing_runs_beside_a_test_that_runs_alone(process):
    start, end = process
    side_by_side = threading.Barrier(3, timeout=LIMIT_S)
    start(*[False] * 40, in_the_first=side_by_side.wait)
    start(*[False, True, True, False] * 5, in_the_first=side_by_side.wait)
    side_by_side.wait()
    start(*[True, False] * 5)
    alone = beside = most = 0
    for is_alone, change in end():
        alone, beside = alone + is_alone * change, beside + (not is_alone) * change
        assert alone == 0 or (alone, beside) == (1, 0)
        most = max(most, beside)
    assert most > 1  # the others ran side by side


def is_taken(lock):
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_test_that_waits_to_run_alone_is_overtaken_by_none_that_comes_later(process, tmp_path):
    start, end = process
    with Turns(tmp_path).turn(alone=False):
        start(True)
        wait_until(lambda: is_taken(tmp_path / "q"))
        start(False)
        time.sleep(0.05)  # in which it may try
    assert [is_alone for is_alone, change in end() if change == 1] == [True, False]
