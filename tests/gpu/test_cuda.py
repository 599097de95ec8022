"""What is said of direct copies between GPUs.

That they are enabled is tried on simulated GPUs: tests/gpus/test_peer_access.py.
"""

import itertools
import json
import os

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn
from support.devices import contexts, named
from support.packages import package

from gluonlab.config import TrainConfig
from gluonlab.engine import setup
from gluonlab.errors import ConfigError, GluonlabWarning
from gluonlab.gpu import cuda
from gluonlab.gpu.cuda import (
    Arithmetic,
    Kind,
    check_arithmetic,
    enable_peer_access,
    has_code,
    lacking,
    peer_pairs,
    peer_words,
    peers_in_words,
    sm_of,
    use_arithmetic,
)
from gluonlab.models import get_model
from gluonlab.training.plan import make_plan
from gluonlab.training.repeatable import unordered


@pytest.mark.cpu_only("GPUs' are in tests/gpus/test_peer_access.py")
def test_nothing_is_asked_or_said_for_cpu_devices_and_for_one_gpu():
    """The CPU build of MXNet has no CUDA that could be asked."""
    for ctxs in ([mx.cpu(0), mx.cpu(1)], [mx.gpu(0)], [mx.gpu(0), mx.gpu(0)], []):
        enable_peer_access(ctxs)
        assert (peer_pairs(ctxs), peers_in_words(ctxs)) == ([], "")


@given(count=st.integers(2, 8), data=st.data())
def test_one_line_names_the_pairs_where_some_have_access_and_others_not(count, data):
    every = [(a, b) for b in range(count) for a in range(b)]
    able = data.draw(st.sets(st.sampled_from(every)))
    words = peer_words(range(count), sorted(able))
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


K80, H100, V100, T4 = ("Tesla K80", 3, 7), ("NVIDIA H100", 9, 0), ("V100", 7, 0), ("T4", 7, 5)


@pytest.fixture
def machine(monkeypatch):
    """``machine(K80, T4)`` has these GPUs; the driver is asked again which they are."""

    def make(*gpus):
        def kind_of(number):
            name, major, minor = gpus[number]
            return Kind(name, (major, minor))

        monkeypatch.setattr(cuda, "kind_of", kind_of)
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


GPU, CPU = [mx.gpu(0)], [mx.cpu(0)]  # names: nothing is computed on them here
VARIABLES = ("MXNET_ENFORCE_DETERMINISM", "MXNET_CUDNN_AUTOTUNE_DEFAULT", "NVIDIA_TF32_OVERRIDE")
DEFAULTS, REPEATED = ("0", "1", "0"), ("1", "0", "0")


@pytest.fixture
def fresh(monkeypatch):
    """A process whose GPUs have not computed yet. ``fresh(NAME="1")``: with something exported."""
    monkeypatch.setattr(cuda, "_in_use", None)
    monkeypatch.setattr(cuda, "_users", {})

    def export(**exported):
        for name, default in zip(VARIABLES, DEFAULTS):
            monkeypatch.setenv(name, exported.get(name, default))

    export()
    return export


def seen():
    return tuple(os.environ.get(name) for name in VARIABLES)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=2)))
def test_how_gpus_compute_fits_into_a_line_of_80_columns(wanted):
    assert len("arithmetic ") + len(Arithmetic(*wanted).in_words()) <= 80


@pytest.mark.parametrize(
    "exported", [{}, dict(zip(VARIABLES, ("1", "2", "1")))], ids=["nothing", "all"]
)
def test_gluonlab_sets_what_the_user_has_not_when_mxnet_is_loaded(python, tmp_path, exported):
    site = package(tmp_path / "site", "mxnet", "")
    tell = (
        "import gluonlab, mxnet, os, json; print(json.dumps([os.environ.get(name) "
        f"for name in {VARIABLES}]))"
    )
    assert json.loads(python("-c", tell, path=[site], **exported).stdout) == list(
        exported.values() or DEFAULTS
    )


def test_deterministic_gpus_are_told_so_and_cpu_devices_nothing(fresh):
    use_arithmetic(Arithmetic(deterministic=True, tf32=True), CPU)
    assert seen() == DEFAULTS
    use_arithmetic(Arithmetic(deterministic=True, tf32=False), GPU)
    assert seen() == REPEATED


def test_tf32_is_left_to_the_libraries(fresh):
    use_arithmetic(Arithmetic(deterministic=True, tf32=True), GPU)
    assert seen() == ("1", "0", None)


def test_what_is_exported_counts_where_no_option_does(fresh):
    assert cuda.arithmetic() == (False, False)
    fresh(NVIDIA_TF32_OVERRIDE="1")
    assert cuda.arithmetic() == (False, True)
    assert cuda.arithmetic(tf32=False) == (False, False)
    fresh(MXNET_ENFORCE_DETERMINISM="1")  # tuned by time all the same
    assert cuda.arithmetic() == (False, False)
    fresh(MXNET_ENFORCE_DETERMINISM="1", MXNET_CUDNN_AUTOTUNE_DEFAULT="0")
    assert cuda.arithmetic() == (True, False)


@given(wanted=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=2))
def test_what_gpus_cannot_change_any_more_is_refused_in_one_line(wanted):
    first, second = (Arithmetic(*each) for each in wanted)
    cuda._in_use = first
    try:
        check_arithmetic(second, CPU)
        too_late = first.tf32 != second.tf32 or (second.deterministic and not first.deterministic)
        if too_late:
            with pytest.raises(
                ConfigError, match=r"^--(no-)?(tf32|deterministic): .*: start a new process$"
            ) as refused:
                check_arithmetic(second, GPU)
            assert "\n" not in str(refused.value)
        else:
            check_arithmetic(second, GPU)
    finally:
        cuda._in_use = None


def test_a_run_after_a_deterministic_one_is_told_what_stays(fresh):
    use_arithmetic(Arithmetic(deterministic=True, tf32=False), GPU)
    with pytest.warns(GluonlabWarning, match="keep those algorithms"):
        use_arithmetic(Arithmetic(deterministic=False, tf32=False), GPU)
    assert seen() == DEFAULTS


def test_mxnet_gets_to_know_a_convolution_of_a_single_number_without_tuning(monkeypatch):
    """It runs on any device, also where there is nothing to be tuned."""
    found, convolution = [], mx.nd.Convolution

    def convolve(*args, **settings):
        found.append((convolution(*args, **settings), settings["cudnn_tune"]))
        return found[-1][0]

    monkeypatch.setattr(mx.nd, "Convolution", convolve)
    [device] = contexts(1)
    cuda._announce_nothing(device)
    [(number, tuned)] = found
    assert number.context == device and number.asnumpy().tolist() == [[[[1.0]]]]
    assert tuned == "off"


def test_options_reach_the_plan_and_the_record():
    plan = make_plan(TrainConfig(devices=named(1), deterministic=True, tf32=True))
    assert plan.arithmetic == (True, True)
    assert plan.config.to_dict()["deterministic"] is plan.config.to_dict()["tf32"] is True


def by(operator, **settings):
    return lambda: nn.HybridLambda(lambda F, x: operator(F)(x, **settings))


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (lambda: nn.Conv2D(3, 3), None),
        (lambda: nn.Conv2DTranspose(3, 3), None),
        (nn.MaxPool2D, None),
        (nn.AvgPool1D, None),
        (nn.MaxPool1D, "Pooling"),
        (lambda: nn.ReflectionPad2D(1), "Pad"),
        (by(lambda F: F.pad, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)), None),
        (
            by(lambda F: F.contrib.AdaptiveAvgPooling2D, output_size=2),
            "_contrib_AdaptiveAvgPooling2D",
        ),
        (by(lambda F: F.contrib.BilinearResize2D, height=2, width=2), "_contrib_BilinearResize2D"),
    ],
)
def test_operators_whose_gradients_gpus_add_up_in_any_order_are_found(layer, operator):
    net = nn.HybridSequential(prefix="")
    net.add(nn.BatchNorm(), layer(), nn.Activation("relu"))
    found = unordered(net(mx.sym.var("data")))
    assert (found and found.operator) == operator


@pytest.mark.parametrize(
    "name", ["lenet", "mlp", "resnet8", "resnet18", "cifar_resnet20", "gluoncv:mobilenetv2_0.25"]
)
def test_the_networks_offered_repeat_their_bits(name):
    assert unordered(get_model(name, 10, CPU)(mx.sym.var("data"))) is None
