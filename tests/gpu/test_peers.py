"""What is said of direct copies between GPUs.

That they are enabled is tried on simulated GPUs: tests/gpus/test_peer_access.py.
"""

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.engine import setup
from gluonlab.gpu.peers import enable_peer_access, in_words, peer_pairs, words_for


@pytest.mark.cpu_only("GPUs' are in tests/gpus/test_peer_access.py")
def test_nothing_is_asked_or_said_for_cpu_devices_and_for_one_gpu():
    """The CPU build of MXNet has no CUDA that could be asked."""
    for ctxs in ([mx.cpu(0), mx.cpu(1)], [mx.gpu(0)], [mx.gpu(0), mx.gpu(0)], []):
        enable_peer_access(ctxs)
        assert (peer_pairs(ctxs), in_words(ctxs)) == ([], "")


@given(count=st.integers(2, 8), data=st.data())
def test_one_line_names_the_pairs_where_some_have_access_and_others_not(count, data):
    every = [(a, b) for b in range(count) for a in range(b)]
    able = data.draw(st.sets(st.sampled_from(every)))
    words = words_for(range(count), sorted(able))
    named = {
        pair
        for pair in every
        if f"{pair[0]}-{pair[1]}" in words.replace(",", "").replace(";", "").split()
    }
    assert named == (able if len(able) < len(every) else set())
    assert ("all copies go through the host" in words) == (not able)
    assert "\n" not in words


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, True),
        ("", True),
        ("1", True),
        ("0", False),
        (" 00 ", False),
        ("-0", False),
        ("2", True),
    ],
)
def test_the_users_word_is_mxnets_variable(monkeypatch, value, wanted):
    name = setup.PEER_VARIABLE
    monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert setup.peer_access_wanted() == wanted
    with setup.peers_are_enabled():
        assert not setup.peer_access_wanted()
    assert setup.peer_access_wanted() == wanted
