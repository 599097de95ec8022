"""GPUs that MXNet has no code for: all of a kind are named, and those that compute instead."""

import pytest

from gluonlab.gpu import code
from gluonlab.gpu.code import Kind, has_code, lacking, sm_of

K80, H100, V100, T4 = ("Tesla K80", 3, 7), ("NVIDIA H100", 9, 0), ("V100", 7, 0), ("T4", 7, 5)


@pytest.fixture
def machine(monkeypatch):
    """``machine(K80, T4)`` has these GPUs; the driver is asked again which they are."""

    def make(*gpus):
        def kind_of(number):
            name, major, minor = gpus[number]
            return Kind(name, (major, minor))

        monkeypatch.setattr(code, "kind_of", kind_of)
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
    said = lacking(asked, machine(*gpus))
    assert said.startswith(are) and use in said and "--devices 'cpu*2'" in said
    assert "\n" not in said and "has code only for sm_50, sm_60, sm_70, sm_80, sm_86: " in said


def test_nothing_is_said_of_gpus_that_compute_and_of_those_that_nobody_asked_for(machine):
    count = machine(V100, K80, T4)
    assert lacking([0, 2], count) == lacking([], count) == ""


def test_code_runs_on_its_own_major_version_from_its_minor_version_on():
    """NVIDIA, "CUDA C++ Programming Guide", Binary Compatibility."""
    runs = {(5, 2), (6, 1), (7, 0), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9)}
    for capability in ((3, 5), (3, 7), (9, 0), (10, 0), (12, 0), *runs):
        assert has_code(capability) == (capability in runs)
        assert sm_of(capability) == "sm_" + "".join(map(str, capability))
