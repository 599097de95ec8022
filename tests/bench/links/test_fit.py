"""Latency and bandwidth are found again in times that were made of them, also in noisy ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.links.__main__ import SIZES
from gluonlab.bench.links.fit import alike, fit

LINKS = st.tuples(st.floats(1e-6, 1e-4), st.floats(1e8, 3e11))  # latency_s, bytes_per_s


def times(latency_s, bytes_per_s, noise=lambda: 1.0, rounds=1):
    return {
        size: [(latency_s + size / bytes_per_s) * noise() for _ in range(rounds)]
        for size in parse_sizes(SIZES)
    }


@given(LINKS)
def test_exact_times_give_the_link_that_they_were_made_of(link):
    found = fit(times(*link))
    assert (found.latency_s, found.bytes_per_s) == pytest.approx(link, rel=1e-6)
    assert found.off < 1e-6
    assert found.seconds(2**20) == pytest.approx(link[0] + 2**20 / link[1])


@given(LINKS, st.randoms(use_true_random=False))
def test_noise_and_disturbed_rounds_change_little(link, rng):
    """3 % of noise, and in two rounds of seven up to ten times as long."""

    def noise():
        return rng.uniform(0.97, 1.03)

    exact, noisy = times(*link), times(*link, noise, rounds=7)
    for rounds in noisy.values():
        for place in rng.sample(range(7), 2):
            rounds[place] *= rng.uniform(1, 10)
    found = fit(noisy)
    for size, (seconds,) in exact.items():
        assert found.seconds(size) == pytest.approx(seconds, rel=0.08)
    latency_s, bytes_per_s = link
    if latency_s > 4 * 2**12 / bytes_per_s:  # the smallest copies show it
        assert found.latency_s == pytest.approx(latency_s, rel=0.15)
    if latency_s < 2**24 / bytes_per_s / 4:  # the largest ones do
        assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=0.15)


@given(st.dictionaries(st.integers(1, 2**40), st.floats(1e-9, 1e3), min_size=2, max_size=5))
def test_whatever_was_measured_is_a_link(seconds):
    found = fit({size: [t] for size, t in seconds.items()})
    assert found.latency_s >= 0 and 0 < found.bytes_per_s < float("inf")


def test_a_copy_that_takes_no_longer_the_larger_it_is_has_half_of_its_time_for_moving():
    found = fit({1000: [2e-5], 1_000_000: [2e-5]})
    assert (found.latency_s, found.bytes_per_s) == (1e-5, pytest.approx(1e11))


@given(st.lists(st.floats(1, 1e12), max_size=20), st.floats(1, 2))
def test_what_is_alike_gets_the_same_value(values, within):
    found = alike(values, within)
    for one, new in zip(values, found):
        assert one / within <= new <= one * within
        for other, also in zip(values, found):
            assert (one <= other) <= (new <= also)


def test_noise_is_levelled_and_kinds_of_links_stay_apart():
    levelled = alike([50.1, 24.9, 49.7, 10, 25.2], 1.1)
    assert levelled == pytest.approx([49.9, 25.05, 49.9, 10, 25.05])
    assert levelled[0] == levelled[2] and levelled[1] == levelled[4]
