"""Ranks of lab 08: threads that end with the call that runs them."""

import signal
import threading
import time

import pytest

from gluonlab.exercises.simulated_distributed import RankGroup


def test_an_interrupt_ends_every_rank():
    main, running = threading.main_thread().ident, threading.Semaphore(0)
    ended = [threading.Event() for _ in range(3)]

    def spin(rank):
        try:
            running.release()
            while True:
                time.sleep(0.001)
        finally:
            ended[rank].set()

    def interrupt():
        for _ in ended:
            running.acquire()
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        RankGroup(3).run(spin)
    assert all(each.wait(600) for each in ended)


def test_each_rank_returns_or_raises():
    def fail_in_rank_1(rank):
        if rank == 1:
            raise ValueError("rank 1")
        return 10 * rank

    outcomes = RankGroup(3).run(fail_in_rank_1)
    assert [each.value for each in outcomes] == [0, None, 20]
    assert [str(each.error) for each in outcomes] == ["None", "rank 1", "None"]
