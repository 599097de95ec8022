"""Processes of a group see time and signals change after the same step; one alone sees its own."""

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


def exchange(group, consensus):
    """What the losses bring about, every few steps."""
    consensus.update_from_all(group.all_reduce_values(consensus.local_flags()))


@settings(max_examples=20)
@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.integers(0, EXCHANGES - 1), st.sampled_from([*EXCEPTION_BY_SIGNAL]))),
        min_size=2,
        max_size=4,
    )
)
def test_all_see_a_signal_after_the_same_exchange(of_ranks):
    """Each rank may get one, before one of the exchanges."""

    def work(group):
        request = StopRequest()
        consensus, seen = StopCoordinator(group, request), []
        for number in range(EXCHANGES):
            before, own = consensus.agreed_signal, of_ranks[group.rank]
            if own is not None and own[0] == number:
                request.set_signal(own[1])
            assert consensus.agreed_signal == before
            exchange(group, consensus)
            seen.append((consensus.agreed_signal, consensus.shared_time()))
        return seen

    everyones = run_in_threads(len(of_ranks), work)
    assert all(seen == everyones[0] for seen in everyones)
    first = min((own[0] for own in of_ranks if own is not None), default=EXCHANGES)
    signals, moments = zip(*everyones[0])
    assert [number for number in signals[:first] if number is not None] == []
    assert all(number in EXCEPTION_BY_SIGNAL for number in signals[first:])
    assert list(moments) == sorted(moments) and moments[0] > 0


def test_the_time_is_that_of_rank_0():
    def work(group):
        before = time.monotonic()
        if group.rank:
            group.all_reduce_values(np.zeros(1))  # rank 0 has begun
        consensus, begun = StopCoordinator(group), time.monotonic()
        if group.rank == 0:
            group.all_reduce_values(np.zeros(1))
        assert consensus.shared_time() == 0
        asked = time.monotonic()
        exchange(group, consensus)
        told, answered = consensus.shared_time(), time.monotonic()
        while time.monotonic() == answered:
            pass
        assert consensus.shared_time() == told
        return told, asked - begun, answered - before

    (first, least, most), (second, *_) = run_in_threads(2, work)
    assert first == second
    assert least - 1e-6 <= first <= most + 1e-6


def test_an_evaluation_of_a_group_ends_after_the_same_batch():
    def work(group):
        request, done = StopRequest(), []
        consensus = StopCoordinator(group, request)

        class Enough(Exception):
            pass

        def answer():
            raise Enough

        with pytest.raises(Enough):
            for batch in consensus.poll_between(range(50), answer):
                done.append(batch)
                if (group.rank, batch) == (1, 9):
                    request.set_signal(signal.SIGTERM)
        with pytest.raises(EXCEPTION_BY_SIGNAL[signal.SIGTERM]):
            consensus.raise_signal()
        return done

    assert run_in_threads(2, work) == [list(range(3 * POLL_EVERY))] * 2


def test_a_single_process_sees_its_own_signal_at_once():
    with pytest.raises(KeyboardInterrupt), StopRequest() as request:
        consensus = StopCoordinator(request=request)
        assert consensus.agreed_signal is None and not consensus.local_flags()[1:].any()
        os.kill(os.getpid(), signal.SIGINT)
        assert consensus.agreed_signal == signal.SIGINT
        consensus.raise_signal()
