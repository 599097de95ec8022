"""The processes of a group notice time and signals after the same step; a single process at once."""

import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.process_group import run_in_threads

from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest
from gluonlab.training.stop_consensus import POLL_EVERY, StopCoordinator

EXCHANGES = 6


def exchange_flags(group, coordinator):
    """Sum the flags of all ranks, as reading the losses does every few steps."""
    coordinator.update_from_all(group.all_reduce_values(coordinator.local_flags()))


SIGNALS = st.none() | st.tuples(st.integers(0, EXCHANGES - 1), st.sampled_from([*EXCEPTION_BY_SIGNAL]))


@settings(max_examples=20)
@given(st.lists(SIGNALS, min_size=2, max_size=4))
def test_all_ranks_notice_a_signal_after_the_same_exchange(signals):
    """Each rank may get one, before one of the exchanges."""

    def work(group):
        request, results = StopRequest(), []
        coordinator, signal_ = StopCoordinator(group, request), signals[group.rank]
        for number in range(EXCHANGES):
            before = coordinator.agreed_signal
            if signal_ is not None and signal_[0] == number:
                request.set_signal(signal_[1])
            assert coordinator.agreed_signal == before
            exchange_flags(group, coordinator)
            results.append((coordinator.agreed_signal, coordinator.shared_time()))
        return results

    results, *others = run_in_threads(len(signals), work)
    assert all(other == results for other in others)
    first = min((signal_[0] for signal_ in signals if signal_ is not None), default=EXCHANGES)
    agreed, times = zip(*results)
    assert set(agreed[:first]) <= {None} and set(agreed[first:]) <= set(EXCEPTION_BY_SIGNAL)
    assert list(times) == sorted(times) and times[0] > 0


def test_the_time_is_that_of_rank_0():
    def work(group):
        start = time.monotonic()
        if group.rank:
            group.all_reduce_values(np.zeros(1))  # rank 0 has started
        coordinator, started = StopCoordinator(group), time.monotonic()
        if group.rank == 0:
            group.all_reduce_values(np.zeros(1))
        assert coordinator.shared_time() == 0
        before = time.monotonic()
        exchange_flags(group, coordinator)
        shared, after = coordinator.shared_time(), time.monotonic()
        while time.monotonic() == after:
            pass
        assert coordinator.shared_time() == shared
        return shared, before - started, after - start

    (first, least, most), (second, *_) = run_in_threads(2, work)
    assert first == second
    assert least - 1e-6 <= first <= most + 1e-6


def test_an_evaluation_of_a_group_ends_after_the_same_batch():
    def work(group):
        request, batches = StopRequest(), []
        coordinator = StopCoordinator(group, request)
        with pytest.raises(ZeroDivisionError):
            for batch in coordinator.poll_between(range(50), lambda: 1 / 0):
                batches.append(batch)
                if (group.rank, batch) == (1, 9):
                    request.set_signal(signal.SIGTERM)
        with pytest.raises(EXCEPTION_BY_SIGNAL[signal.SIGTERM]):
            coordinator.raise_signal()
        return batches

    assert run_in_threads(2, work) == [list(range(3 * POLL_EVERY))] * 2


def test_a_single_process_sees_its_own_signal_at_once():
    with pytest.raises(KeyboardInterrupt), StopRequest() as request:
        consensus = StopCoordinator(request=request)
        assert consensus.agreed_signal is None and not consensus.local_flags()[1:].any()
        os.kill(os.getpid(), signal.SIGINT)
        assert consensus.agreed_signal == signal.SIGINT
        consensus.raise_signal()
