"""Tests that measure time have the machine to themselves, however many processes run tests."""

import threading
import time

import pytest
from support.side_by_side import Turns


@pytest.fixture
def process(tmp_path):
    """``process(*alone)``: a process's tests as a thread, and what it notes when each begins and
    ends.
    """
    noted, threads = [], []

    def run(turns, tests):
        for alone in tests:
            with turns.turn(alone):
                noted.append((alone, 1))
                time.sleep(0.002)
                noted.append((alone, -1))

    def start(*tests):
        threads.append(threading.Thread(target=run, args=(Turns(tmp_path), tests)))
        threads[-1].start()

    def end():
        for thread in threads:
            thread.join()
        return noted

    yield start, end
    end()


def test_nothing_runs_beside_a_test_that_runs_alone(process):
    start, end = process
    start(*[False] * 40)
    start(*[False, True, True, False] * 5)
    start(*[True, False] * 5)
    alone = beside = most = 0
    for is_alone, change in end():
        alone, beside = alone + is_alone * change, beside + (not is_alone) * change
        assert alone == 0 or (alone, beside) == (1, 0)
        most = max(most, beside)
    assert most > 1  # the others ran side by side


def test_a_test_that_waits_to_run_alone_is_overtaken_by_none_that_comes_later(process, tmp_path):
    start, end = process
    with Turns(tmp_path).turn(alone=False):
        start(True)
        time.sleep(0.05)
        start(False)
        time.sleep(0.05)
    assert [is_alone for is_alone, change in end() if change == 1] == [True, False]
