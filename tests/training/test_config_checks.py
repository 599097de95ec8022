"""Every check of a run raises its own error, in the order of the list."""

import dataclasses
import itertools
import sys
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import device_spec

from gluonlab.config import TrainConfig
from gluonlab.data import Dataset, Defaults, load_dataset
from gluonlab.errors import GluonlabWarning, UsageError
from gluonlab.gpu import math_modes
from gluonlab.kvstores.process_groups import SummingGroup
from gluonlab.models import get_model
from gluonlab.training import plan as plans
from gluonlab.training.config_checks import check_batch_size, check_exportable, check_network
from gluonlab.training.plan import make_plan, resolve_config, set_up_devices
from gluonlab.training.user_components import NO_USER_COMPONENTS, UserComponents, make_user_components

CONFIG, DEVICES, DATA, NETWORK, BATCH = "config", "devices", "data", "network", "batch"
# What makes a check fail, and its message, in the order of the checks.
WRONG = {
    (CONFIG, "group"): ({"sync_bn": True}, "--sync-bn is for the devices of one process"),
    (CONFIG, "kvstore"): ({"kvstore": "rign"}, "unknown kvstore 'rign'"),
    (CONFIG, "topology"): ({"topology": "p3.16xlarge"}, "--topology 'p3.16xlarge': kvstore 'dev"),
    (CONFIG, "split"): ({"strategy": "layer"}, "unknown --strategy 'layer'"),
    (CONFIG, "own"): ({"model": "mlp"}, "--model mlp and the network Dense contradict each other"),
    (CONFIG, "dataset"): ({"dataset": "digit"}, "unknown data set 'digit'"),
    (CONFIG, "recipe"): ({"recipe": "quik"}, "unknown --recipe 'quik'"),
    (CONFIG, "servers"): ({"update_on_servers": True}, "--update-on-servers needs parameter servers, but a single"),
    (CONFIG, "schedule"): ({"lr_decay": 0.5}, "--lr-decay 0.5 has no effect with --lr-schedule"),
    (CONFIG, "epochs"): ({"warmup_epochs": 10}, "--warmup-epochs 10: must be less than the number of"),
    (CONFIG, "dtype"): ({"dtype": "float17"}, "unknown --dtype 'float17'"),
    (CONFIG, "on-nan"): ({"on_nan": "skp"}, "unknown --on-nan 'skp'"),
    (CONFIG, "compression"): ({"compress": "2bit", "kvstore": "local"}, "--compress 2bit:0.5: kvstore 'local' cannot"),
    (CONFIG, "checkpoints"): (
        {"compress": "2bit", "checkpoint_every": "5 steps"},
        "--checkpoint-every 5 steps and --compress 2bit:0.5 contradict each other",
    ),
    (CONFIG, "model"): ({"model": "lenett"}, "unknown model 'lenett'"),
    (CONFIG, "colors"): ({"normalize": "imagenets"}, "unknown --normalize 'imagenets'"),
    (CONFIG, "files"): ({"image_size": 64}, "--image-size works only with image files"),
    (CONFIG, "optimizer"): ({"optimizer": "sdg"}, "unknown optimizer 'sdg'"),
    (CONFIG, "momentum"): (
        {"optimizer": "sgd", "momentum_rule": "mxnet"},
        "--momentum-rule mxnet has no effect because the momentum is 0",
    ),
    (CONFIG, "decay"): ({"no_bias_decay": True}, "--no-bias-decay has no effect because the weight decay is 0"),
    (CONFIG, "pretrained"): ({"pretrained": "no.params"}, "--pretrained no.params"),
    (CONFIG, "export"): ({"export": "onnx"}, "--export onnx needs onnx and onnxruntime, but onnx is not installed"),
    (CONFIG, "tensorboard"): ({"tensorboard": True}, "--tensorboard needs tensorboardX, which is not installed"),
    (DEVICES, "devices"): ({"devices": "gpu:77"}, "there is no gpu:77"),
    (DEVICES, "dtype"): ({"dtype": "float16"}, "--dtype float16 needs GPUs"),
    (DEVICES, "arithmetic"): (
        {"tf32": True},
        "--tf32 cannot be set, because this process has already used GPUs without",
    ),
    (DEVICES, "strategy"): ({"strategy": "layers", "pipeline_parallel": 4}, "devices cannot be divided"),
    (DEVICES, "weights"): ({"device_weights": "1"}, "--device-weights 1 has 1 number, "),
    (DEVICES, "sharding"): (
        {"optimizer": "lamb", "kvstore": "sharded-optimizer"},
        "--kvstore sharded-optimizer splits parameters over devices",
    ),
    (DEVICES, "channels"): (
        {"strategy": "tensor", "optimizer": "lars"},
        "--strategy tensor splits parameters over devices, but lars needs whole parameters",
    ),
    (DEVICES, "kvstore"): ({"kvstore": "ring", "topology": "p3.16xlarge", "devices": "cpu*9"}, "kvstore 'ring' on cpu"),
    (DATA, "dataset"): ({"normalize": "cifar10"}, "--normalize cifar10 is for 3 channels"),
    (DATA, "loss"): ({}, "loss L2Loss is for regression"),
    (DATA, "metrics"): ({}, "metric f1 failed: ValueError: "),
    (DATA, "last batch"): (
        {"drop_last": True, "batch_size": 5000},
        "--drop-last: digits has only 1,437 training images",
    ),
    (DATA, "weights"): ({"device_weights": "1000,1"}, "1) would get none of the "),
    (DATA, "microbatches"): ({"microbatches": 3, "batch_size": 2}, "--microbatches 3"),
    (DATA, "profile"): ({"profile": 99999}, "--profile 99999: an epoch has only"),
    (DATA, "final rate"): ({"final_lr": 3, "lr_schedule": "linear"}, "--final-lr 3 exceeds"),
    (NETWORK, "sync-bn"): ({"sync_bn": True}, "--sync-bn: lenet has no BatchNorm layers"),
    (NETWORK, "deterministic"): ({"deterministic": True}, "--deterministic: lenet contains Pooling"),
    (NETWORK, "on-nan"): (
        {"on_nan": "skip", "model": "resnet8"},
        "--on-nan skip does not work with BatchNorm, because a skipped batch would already have changed the",
    ),
    (BATCH, "arrays"): ({"global_batch_size": 10**8}, "must have fewer than 2,147,483,647 elements"),
    (BATCH, "export"): ({"export": "onnx"}, "contains the operator erf, which MXNet cannot translate to ONNX"),
}
KEYS = list(WRONG)
# What is given besides the settings
OWN = {
    (CONFIG, "own"): UserComponents(net=nn.Dense(10)),
    (DATA, "loss"): UserComponents(loss=gluon.loss.L2Loss()),
    (DATA, "metrics"): make_user_components(metrics=mx.metric.F1()),
}
# GPUs, more processes, or fewer packages, or what stands for them
NEED_MORE = [
    (CONFIG, "group"), (CONFIG, "export"), (CONFIG, "tensorboard"), (DEVICES, "arithmetic"),
    (NETWORK, "deterministic"),
]  # fmt: skip
BEFORE_THE_NETWORK = [key for key in KEYS if key[0] not in (NETWORK, BATCH)]


class Endless:
    """A split of more images than any batch has."""

    image_shape = (1, 28, 28)

    def __len__(self):
        return 10**9


class Erf(nn.HybridBlock):
    """With an operator that MXNet's exporter does not know."""

    def __init__(self, classes):
        super().__init__()
        self.scores = nn.Dense(classes)

    def hybrid_forward(self, F, x):
        return self.scores(F.erf(x))


def plan_of(settings, own=NO_USER_COMPONENTS):
    split = Endless() if "global_batch_size" in settings else load_dataset("digits").train
    dataset = Dataset("digits", split, split, tuple("0123456789"), Defaults())
    return make_plan(TrainConfig(**{"devices": device_spec(2), **settings}), dataset, components=own)


@pytest.fixture(autouse=True)
def has_parameter_server(monkeypatch):
    """On ARM, MXNet has none, which changes a message."""
    monkeypatch.setattr("gluonlab.training.config_checks.has_parameter_server", lambda: True)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=[pytest.mark.cpu_only("GPUs have float16")] * (key[1] == "dtype"))
        for key in BEFORE_THE_NETWORK
        if key not in NEED_MORE
    ],
)
def test_each_check_raises_a_one_line_error(key):
    settings, message = WRONG[key]
    with pytest.raises(UsageError) as raised:
        make_plan(TrainConfig(**{"devices": device_spec(2), **settings}), components=OWN.get(key, NO_USER_COMPONENTS))
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "module"), [("export", "onnx"), ("tensorboard", "tensorboardX")])
def test_a_missing_package_is_found_before_training(monkeypatch, name, module):
    settings, message = WRONG[CONFIG, name]
    monkeypatch.setitem(sys.modules, module, None)  # its import raises ModuleNotFoundError
    with pytest.raises(UsageError, match=message):
        make_plan(TrainConfig(devices=device_spec(2), **settings))


@pytest.mark.cpu_only("GPUs have float16")
def test_of_two_errors_the_first_of_the_list_is_raised():
    """For all pairs of settings that are wrong independently of each other."""
    pairs, about_kvstores = 0, {"kvstore", "topology", "compression", "checkpoints", "sharding"}
    keys = [key for key in BEFORE_THE_NETWORK if key not in {*OWN, *NEED_MORE}]
    for first, second in itertools.combinations(keys, 2):
        one, other = WRONG[first][0], WRONG[second][0]
        names, settings = {first[1], second[1]}, {**one, **other}
        if (
            set(one) & set(other)
            or names <= about_kvstores
            or names == {"checkpoints", "dtype"}  # --compress and float16
            or ("device_weights" in settings and {"strategy", "devices"} & set(settings))  # too few weights
        ):
            continue
        with pytest.raises(UsageError) as raised:
            make_plan(TrainConfig(**{"devices": device_spec(2), **settings}))
        assert WRONG[first][1] in str(raised.value), (first, second)
        pairs += 1
    assert pairs > 150


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ({"sync_bn": True}, "--sync-bn"),
        ({"estimate_memory": True}, "--estimate-memory"),
        ({"kvstore": "sharded-optimizer"}, "--kvstore"),
    ],
)
def test_single_process_options_are_refused_with_several_processes(setting, option):
    config = TrainConfig(**setting)
    resolve_config(config, group=SummingGroup(0, 1))
    with pytest.raises(UsageError, match=f"^{option}.* works only in a single process, but this run has 2 processes: "):
        resolve_config(config, group=SummingGroup(0, 2))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "--compress fp16: a single process does not send gradients"),
        ("dist_sync", "--compress fp16: dist_sync cannot sum float16 gradients: choose --backend horovod"),
        ("horovod", None),
    ],
)
def test_float16_is_sent_only_over_horovod(name, message):
    """And there with checkpoints, --on-nan skip, any kvstore that sums, and any split."""
    group = SummingGroup(0, 2)
    group.name, group.sums_float16 = name, name == "horovod"
    options = {"checkpoint_every": "5 steps", "on_nan": "skip", "strategy": "layers", "devices": "cpu*2"}
    config = TrainConfig(compress="fp16", kvstore="ring", **options)
    with nullcontext() if message is None else pytest.raises(UsageError, match=f"^{message}[^\n]*$"):
        resolve_config(config, group=group)


@pytest.mark.parametrize("devices", ["cpu", "cpu*2"])
@pytest.mark.parametrize("kvstore", ["device", "local", "ring"])
def test_processes_send_2_bits_and_devices_sum_whole_gradients(devices, kvstore):
    config = TrainConfig(compress="2bit:0.25", devices=devices, kvstore=kvstore, check_replicas=2)
    plan = make_plan(config, group=SummingGroup(0, 2))
    assert plan.compress == plan.settings()["compress"] == "2bit:0.25"
    arrays = [nd.array([0.1], ctx) for ctx in (mx.cpu(0), mx.cpu(1))]
    plan.kvstore.pushpull(0, arrays, out=arrays)
    assert arrays[0].asnumpy() == np.float32(0.1) + np.float32(0.1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"checkpoint_every": "5 steps"}, "--checkpoint-every 5 steps and --compress 2bit:0.5 con"),
        ({"on_nan": "skip"}, "--on-nan skip and --compress 2bit:0.5 contradict each other"),
        ({"strategy": "layers", "devices": "cpu*2"}, "--compress 2bit:0.5 works only with --strategy data"),
        ({"update_on_servers": True}, "--compress 2bit:0.5 and --update-on-servers contradict"),
    ],
    ids=str,
)
def test_options_that_need_whole_gradients_are_refused_with_2_bits(setting, message):
    group = SummingGroup(0, 2)
    group.servers = 1
    with pytest.raises(UsageError, match=f"^{message}[^\n]*$"):
        make_plan(TrainConfig(compress="2bit", **setting), group=group)


def test_one_process_over_horovod_gets_a_warning_that_nothing_is_compressed():
    """It may be the last of several processes: the run continues with the same settings."""
    group = SummingGroup(0, 1)
    group.sums_float16 = True
    with pytest.warns(GluonlabWarning, match="a single process does not send gradients"):
        plan = make_plan(TrainConfig(compress="fp16", devices="cpu*2"), group=group)
    assert plan.compress == plan.settings()["compress"] == "fp16"


def test_gpus_that_used_another_arithmetic_are_refused(monkeypatch):
    monkeypatch.setattr(math_modes, "_current_arithmetic", math_modes.Arithmetic(False, False))
    monkeypatch.setattr(plans, "find_devices", lambda config, group: [mx.gpu(0)])  # nothing is computed on it
    settings, message = WRONG[DEVICES, "arithmetic"]
    with pytest.raises(UsageError, match=message):
        set_up_devices(resolve_config(TrainConfig(**settings)))


@pytest.mark.parametrize("key", [key for key in KEYS if key not in BEFORE_THE_NETWORK])
def test_each_network_check_raises_its_own_error(key):
    settings, message = WRONG[key]
    plan, net = plan_of(settings), get_model(settings.get("model", "lenet"), 10)
    if key == (NETWORK, "deterministic"):
        plan, net = dataclasses.replace(plan, ctxs=[mx.gpu(0)]), nn.MaxPool1D()
    if key == (BATCH, "export"):
        plan, net = plan_of(settings, UserComponents(net=Erf)), Erf(10)
    net.initialize()
    if key[0] == BATCH:
        net(mx.nd.zeros((1, 1, 28, 28)))
    with pytest.raises(UsageError) as raised:
        if key[0] == NETWORK:
            check_network(plan, net)
        else:
            check_batch_size(plan, net, 2)
            check_exportable(plan, net)
    assert message in str(raised.value)
