"""--deterministic and --tf32: how GPUs compute, by variables that the libraries read."""

import json
import os
from contextlib import nullcontext

import mxnet as mx
import pytest
from mxnet.gluon import nn
from support.devices import contexts, device_spec
from support.processes import write_package

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, GluonlabWarning
from gluonlab.gpu import math_modes
from gluonlab.gpu.math_modes import Arithmetic, check_arithmetic, use_arithmetic
from gluonlab.models import get_model
from gluonlab.training.config_checks import find_nondeterministic_operator
from gluonlab.training.plan import make_plan

GPU, CPU = [mx.gpu(0)], [mx.cpu(0)]  # names: nothing is computed on them here
VARIABLES = ("MXNET_ENFORCE_DETERMINISM", "MXNET_CUDNN_AUTOTUNE_DEFAULT", "NVIDIA_TF32_OVERRIDE")
DEFAULTS = ("0", "1", "0")


@pytest.fixture
def fresh(monkeypatch):
    """Act as a process whose GPUs have not computed yet. ``fresh(NAME="1")`` exports variables."""
    monkeypatch.setattr(math_modes, "_current_arithmetic", None)
    monkeypatch.setattr(math_modes, "_exported_values", {})

    def export(**exported):
        for name, default in zip(VARIABLES, DEFAULTS):
            monkeypatch.setenv(name, exported.get(name, default))

    export()
    return export


def variable_values():
    return tuple(os.environ.get(name) for name in VARIABLES)


@pytest.mark.parametrize("exported", [{}, dict(zip(VARIABLES, ("1", "2", "1")))], ids=["nothing", "all"])
def test_gluonlab_sets_what_the_user_has_not_when_mxnet_is_loaded(python, tmp_path, exported):
    site = write_package(tmp_path / "site", "mxnet", "")
    tell = f"import gluonlab, mxnet, os, json; print(json.dumps([os.environ.get(name) for name in {VARIABLES}]))"
    assert json.loads(python("-c", tell, path=[site], **exported).stdout) == list(exported.values() or DEFAULTS)


@pytest.mark.parametrize(
    ("tf32", "device", "expected"),
    [(True, CPU, DEFAULTS), (False, GPU, ("1", "0", "0")), (True, GPU, ("1", "0", None))],
)
def test_variables_are_set_for_gpus_only(fresh, tf32, device, expected):
    use_arithmetic(Arithmetic(deterministic=True, tf32=tf32), device)
    assert variable_values() == expected


def test_what_is_exported_counts_where_no_option_does(fresh):
    assert math_modes.resolve_arithmetic() == (False, False)
    fresh(NVIDIA_TF32_OVERRIDE="1")
    assert math_modes.resolve_arithmetic() == (False, True)
    assert math_modes.resolve_arithmetic(tf32=False) == (False, False)
    fresh(MXNET_ENFORCE_DETERMINISM="1")  # tuned by time all the same
    assert math_modes.resolve_arithmetic() == (False, False)
    fresh(MXNET_ENFORCE_DETERMINISM="1", MXNET_CUDNN_AUTOTUNE_DEFAULT="0")
    assert math_modes.resolve_arithmetic() == (True, False)


MODES = [Arithmetic(deterministic, tf32) for deterministic in (False, True) for tf32 in (False, True)]


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_a_change_that_comes_too_late_is_refused_in_one_line(fresh, monkeypatch, first, second):
    assert len(f"arithmetic {first.in_words()}") <= 80  # a line of the run's header
    monkeypatch.setattr(math_modes, "_current_arithmetic", first)
    check_arithmetic(second, CPU)
    too_late = first.tf32 != second.tf32 or (second.deterministic and not first.deterministic)
    error = r"^--(no-)?(tf32|deterministic) cannot be set, [^\n]*: start a new process$"
    with pytest.raises(ConfigError, match=error) if too_late else nullcontext():
        check_arithmetic(second, GPU)


def test_a_run_after_a_deterministic_one_is_told_what_stays(fresh):
    use_arithmetic(Arithmetic(deterministic=True, tf32=False), GPU)
    with pytest.warns(GluonlabWarning, match="keep those algorithms"):
        use_arithmetic(Arithmetic(deterministic=False, tf32=False), GPU)
    assert variable_values() == DEFAULTS


def test_mxnet_gets_to_know_a_convolution_of_a_single_number_without_tuning(monkeypatch):
    """It runs on any device, also where there is nothing to be tuned."""
    results, convolution, [device] = [], mx.nd.Convolution, contexts(1)

    def convolve(*args, **settings):
        results.append((convolution(*args, **settings), settings["cudnn_tune"]))
        return results[-1][0]

    monkeypatch.setattr(mx.nd, "Convolution", convolve)
    math_modes._silence_tuning_message(device)
    [(number, tune)] = results
    assert (number.context, number.asnumpy().tolist(), tune) == (device, [[[[1.0]]]], "off")


def test_options_reach_the_plan_and_the_record():
    plan = make_plan(TrainConfig(devices=device_spec(1), deterministic=True, tf32=True))
    assert plan.arithmetic == (True, True)
    assert plan.config.to_dict()["deterministic"] is plan.config.to_dict()["tf32"] is True


def by(operator, **settings):
    return lambda: nn.HybridLambda(lambda F, x: operator(F)(x, **settings))


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (lambda: nn.Conv2D(3, 3), None), (lambda: nn.Conv2DTranspose(3, 3), None), (nn.MaxPool2D, None),
        (nn.AvgPool1D, None), (nn.MaxPool1D, "Pooling"), (lambda: nn.ReflectionPad2D(1), "Pad"),
        (by(lambda F: F.pad, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)), None),
        (by(lambda F: F.contrib.AdaptiveAvgPooling2D, output_size=2), "_contrib_AdaptiveAvgPooling2D"),
        (by(lambda F: F.contrib.BilinearResize2D, height=2, width=2), "_contrib_BilinearResize2D"),
    ],
)  # fmt: skip
def test_operators_whose_gradients_gpus_add_up_in_any_order_are_found(layer, operator):
    net = nn.HybridSequential(prefix="")
    net.add(nn.BatchNorm(), layer(), nn.Activation("relu"))
    result = find_nondeterministic_operator(net(mx.sym.var("data")))
    assert (result and result.operator) == operator


@pytest.mark.parametrize("name", ["lenet", "mlp", "resnet8", "resnet18", "cifar_resnet20", "gluoncv:mobilenetv2_0.25"])
def test_the_networks_offered_repeat_their_bits(name):
    assert find_nondeterministic_operator(get_model(name, 10, CPU)(mx.sym.var("data"))) is None
