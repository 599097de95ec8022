"""Messages about direct copies between GPUs, and about GPUs that MXNet has no code for.

Peer access itself is tested on simulated GPUs: tests/gpus/test_peer_access.py.
"""

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.engine import mxnet_setup
from gluonlab.gpu import cuda
from gluonlab.gpu.cuda import (
    GpuModel,
    describe_peer_access,
    describe_unsupported,
    enable_peer_access,
    format_peer_access,
    is_supported,
    peer_pairs,
    sm_name,
)


@pytest.mark.cpu_only("GPUs' are in tests/gpus/test_peer_access.py")
def test_nothing_is_asked_or_said_for_cpu_devices_and_for_one_gpu():
    """The CPU build of MXNet has no CUDA that could be asked."""
    for ctxs in ([mx.cpu(0), mx.cpu(1)], [mx.gpu(0)], [mx.gpu(0), mx.gpu(0)], []):
        enable_peer_access(ctxs)
        assert (peer_pairs(ctxs), describe_peer_access(ctxs)) == ([], "")


@given(count=st.integers(2, 8), data=st.data())
def test_one_line_names_the_pairs_where_some_have_access_and_others_not(count, data):
    every = [(a, b) for b in range(count) for a in range(b)]
    able = data.draw(st.sets(st.sampled_from(every)))
    words = format_peer_access(range(count), sorted(able))
    named = {pair for pair in every if f"{pair[0]}-{pair[1]}" in words.replace(",", "").replace(";", "").split()}
    assert named == (able if len(able) < len(every) else set())
    assert ("all copies go through the host" in words) == (not able)
    assert "\n" not in words


@pytest.mark.parametrize(
    ("value", "allowed"),
    [(None, True), ("", True), ("1", True), ("0", False), (" 00 ", False), ("-0", False), ("2", True)],
)
def test_the_user_decides_by_mxnets_variable(monkeypatch, value, allowed):
    name = mxnet_setup.PEER_VARIABLE
    monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert mxnet_setup.is_peer_access_allowed() == allowed
    with mxnet_setup.skip_peer_access_setup():
        assert not mxnet_setup.is_peer_access_allowed()
    assert mxnet_setup.is_peer_access_allowed() == allowed


K80, H100, V100, T4 = ("Tesla K80", (3, 7)), ("NVIDIA H100", (9, 0)), ("V100", (7, 0)), ("T4", (7, 5))


@pytest.fixture
def machine(monkeypatch):
    """Return ``machine(K80, T4)``, which makes these the GPUs of this machine."""

    def make(*gpus):
        monkeypatch.setattr(cuda, "gpu_model", lambda number: GpuModel(*gpus[number]))
        return len(gpus)

    return make


@pytest.mark.parametrize(
    ("gpus", "asked", "are", "use"),
    [
        ([K80], [0], "gpu:0 is a Tesla K80 (sm_37)", "use a V100, T4, RTX 20 or 30, "),
        ([H100] * 2, [0, 1], "gpu:0 and gpu:1 are each an NVIDIA H100 (sm_90)", "use a V100, T4, "),
        ([K80] * 3, [0, 1, 2], "gpu:0, gpu:1 and gpu:2 are each a Tesla K80", "use a V100, T4, "),
        ([K80] * 3, [2], "gpu:2 is a Tesla K80 (sm_37)", "use a V100, T4, "),
        # of two kinds, the first one is named
        ([V100, H100, K80, H100], [1, 2, 3], "gpu:1 and gpu:3 are each an", "use gpu:0 of this "),
        ([V100, K80, T4], [1], "gpu:1 is a Tesla K80", "use gpu:0 or gpu:2 of this machine, or "),
    ],
)
def test_all_of_the_first_kind_are_named_with_what_computes_instead(machine, gpus, asked, are, use):
    message = describe_unsupported(asked, machine(*gpus))
    assert message.startswith(are) and use in message and "--devices 'cpu*2'" in message
    assert "\n" not in message and "only supports sm_50, sm_60, sm_70, sm_80, sm_86: " in message


def test_supported_gpus_and_unused_ones_are_not_mentioned(machine):
    count = machine(V100, K80, T4)
    assert describe_unsupported([0, 2], count) == describe_unsupported([], count) == ""


def test_code_runs_on_its_own_major_version_from_its_minor_version_on():
    """NVIDIA, "CUDA C++ Programming Guide", Binary Compatibility."""
    runs = {(5, 2), (6, 1), (7, 0), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9)}
    for capability in ((3, 5), (3, 7), (9, 0), (10, 0), (12, 0), *runs):
        assert is_supported(capability) == (capability in runs)
        assert sm_name(capability) == "sm_" + "".join(map(str, capability))
