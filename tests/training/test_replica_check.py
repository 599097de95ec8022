"""--check-replicas: one bit that differs is found and named; equal replicas train on."""

import zlib

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts, device_spec
from support.process_group import run_in_threads
from support.quick_runs import run_quickly
from support.reference import arrays_equal, parameter_arrays
from support.run_files import read_metrics
from support.splits import make_batches, make_chain, make_parallelism, make_strategy_plan, softmax_loss, train_strategy
from support.stores import STORES

from gluonlab.config import TrainConfig
from gluonlab.errors import DriftError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.parallel import strategy_class
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.training.builtin_callbacks import ReplicaCheck
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter


def flip_a_bit(param, ctx, element, bit):
    bits = param.data(ctx).asnumpy().view(np.uint32)
    bits.flat[element] ^= np.uint32(1) << np.uint32(bit)
    param.data(ctx)[:] = nd.array(bits.view(np.float32), ctx=ctx)


def network(ctxs, seed=1):
    random = np.random.RandomState(seed)
    net = get_model("resnet8", 10, ctxs)
    net.initialize(ctx=ctxs)
    complete_initialization(net, "resnet8", (3, 32, 32), 10)
    for param in net.collect_params().values():
        param.set_data(nd.array(random.normal(size=param.shape)))
    return net


def trained_parameters(net):
    return [param for param in net.collect_params().values() if param.grad_req != "null"]


def check_raises(check, step, *parts):
    """Check that comparing the replicas after ``step`` raises an error with these texts; return it."""
    with pytest.raises(DriftError) as raised:
        check.compare_replicas(step)
    assert [part for part in parts if part not in str(raised.value)] == []
    return str(raised.value)


@pytest.fixture(scope="module")
def net_on_four_devices():
    return network(contexts(4))


@pytest.mark.parametrize("seed", range(20))
def test_a_drift_of_one_bit_is_named_wherever_it_is(net_on_four_devices, seed):
    random, ctxs, check = np.random.RandomState(seed), contexts(4), ReplicaCheck(net_on_four_devices)
    check.compare_replicas(3)
    param, ctx = random.choice(trained_parameters(net_on_four_devices)), ctxs[random.randint(4)]
    bit = (param, ctx, random.randint(np.prod(param.shape)), random.randint(32))
    flip_a_bit(*bit)
    others = ", ".join(str(other) for other in ctxs if other != ctx)
    try:
        message = (
            f"after step 6, {param.name} on {ctx} differs from the replicas on {others} "
            "(all replicas were equal after step 3)"
        )
        check_raises(check, 6, message)
    finally:
        flip_a_bit(*bit)


def test_both_of_two_replicas_are_named():
    net, (first, second) = network(contexts(2)), contexts(2)
    param = trained_parameters(net)[1]
    flip_a_bit(param, second, 0, 31)  # 0.0 and -0.0 are equal, but not alike
    check_raises(ReplicaCheck(net), 1, f"after step 1, {param.name} differs between {first}, {second}:")


def test_a_drift_is_named_in_every_process_of_a_group():
    """The processes may have different numbers of devices."""

    def work(group):
        ctxs = contexts(1 + group.rank)
        net = network(ctxs)
        check = ReplicaCheck(net, group=group)
        check.compare_replicas(1)
        if group.rank == 1:
            flip_a_bit(trained_parameters(net)[2], ctxs[1], 3, 0)
        return check_raises(check, 2)

    first, second = run_in_threads(2, work)
    name, (ctx, other) = trained_parameters(network(contexts(2)))[2].name, contexts(2)
    equal = f"{ctx} of process 0, {ctx} of process 1"
    assert (
        first == second
        and f"after step 2, {name} on {other} of process 1 differs from the replicas on {equal}" in first
    )


def test_running_statistics_may_differ_until_they_are_averaged():
    net = network(contexts(2))
    statistics = next(param for param in net.collect_params().values() if param.grad_req == "null")
    flip_a_bit(statistics, contexts(2)[1], 0, 5)
    ReplicaCheck(net).compare_replicas(1)
    check_raises(ReplicaCheck(net, statistics=True), 1, statistics.name)


def test_a_frozen_weight_is_not_a_running_statistic():
    net = nn.Dense(2, in_units=2)
    net.initialize(ctx=contexts(2))
    net.weight.grad_req = "null"
    flip_a_bit(net.weight, contexts(2)[0], 1, 9)
    check_raises(ReplicaCheck(net), 1, net.weight.name)


@pytest.mark.parametrize(("kept", "drifted"), [(0, 1), (1, 0), (0, 7), (7, 0), (1, 7), (7, 1)])
def test_a_replica_whose_checksum_is_zero_or_one_is_compared_as_any_other(kept, drifted):
    """A device without a replica has a zero in the place of the checksum."""
    weights = {0: 0x6DD90A9D, 1: 0xB6A80CDC, 7: 0x3F800000}
    bits = {checksum: np.array([[weight]], np.uint32).view(np.float32) for checksum, weight in weights.items()}
    assert [zlib.crc32(bits[checksum].data) for checksum in (0, 1)] == [0, 1]
    net, (first, second, third) = nn.Dense(1, in_units=1, use_bias=False), contexts(3)
    net.initialize(ctx=contexts(3))
    net.weight.set_data(nd.array(bits[kept]))
    check = ReplicaCheck(net)
    check.compare_replicas(1)
    net.weight.data(second)[:] = nd.array(bits[drifted], ctx=second)
    check_raises(check, 2, f"on {second} differs from the replicas on {first}, {third}")


class DriftingStrategy(DataParallel):
    """Data parallelism in which one weight of one replica changes by a bit in step 5."""

    steps = 0

    def step(self, batch):
        losses, self.steps = super().step(batch), self.steps + 1
        if self.steps == 5:
            flip_a_bit(trained_parameters(self.net)[0], self.inputs[2], 4, 0)
        return losses


@pytest.mark.parametrize(
    ("way", "copies", "more"),
    [
        ("layers", 2, {"cut": (2,), "schedule": "sequential"}),
        ("pipeline", 2, {"cut": (1,), "schedule": "1f1b"}),
        ("tensor", 1, {"channels": "both"}),  # only whole parameters are on several devices
        ("tensor", 2, {"channels": "column"}),
    ],
)
def test_a_drift_of_one_bit_is_found_in_all_replicated_parameters_of_a_split(way, copies, more):
    plan = make_strategy_plan(make_parallelism(way, contexts(2 * copies), 2, max_shard_images=4, **more))
    chain = ([("conv", 4)], [("dense", 5), ("sigmoid", 1)], False, True)
    make = lambda ctxs, start=None: make_chain(chain, start or ctxs)  # noqa: E731
    strategy = strategy_class(way)(make, softmax_loss(), plan, SINGLE_PROCESS)
    check = ReplicaCheck(strategy.net, replicated=strategy.replicated_parameters())
    train_strategy(strategy, make_batches([7, 1]))
    check.compare_replicas(1)
    replicated = [param for param in strategy.replicated_parameters() if len(param.list_ctx()) > 1]
    assert replicated
    for param in replicated:
        bit = (param, param.list_ctx()[-1], 0, 3)
        flip_a_bit(*bit)
        check_raises(check, 2, param.name)
        flip_a_bit(*bit)
    check.compare_replicas(3)


def test_a_run_ends_at_the_first_check_after_the_drift(tmp_path):
    settings = {"devices": device_spec(3), "model": "mlp", "epochs": 1, "batch_size": 40, "check_replicas": 3}
    with pytest.raises(DriftError, match=r"after step 6, .* \(all replicas were equal after step 3\)") as raised:
        train(TrainConfig(**settings, out=str(tmp_path / "run")), DriftingStrategy, Reporter())
    [event] = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "event"]
    assert event["message"] == str(raised.value)


GLOBAL_BATCH = {"batch_size": None, "global_batch_size": 718}  # one image is left over
SYNC_BN = {"model": "resnet8", "sync_bn": True, "batch_size": None, "global_batch_size": 359}


@pytest.mark.parametrize(
    ("store", "devices", "more"),
    [
        ("sharded-optimizer", 3, {}),
        ("device", 3, GLOBAL_BATCH),
        pytest.param("device", 3, SYNC_BN, marks=pytest.mark.long),
        *(
            pytest.param(store, devices, more, marks=pytest.mark.long)
            for store in STORES
            for devices in (2, 3, 4)
            for more in ({"optimizer": "adam"}, {"clip_norm": 1.0, "mixup": 1})
        ),
    ],
)
def test_equal_replicas_train_on_with_the_same_bits(tmp_path, store, devices, more):
    settings = {"devices": device_spec(devices), "kvstore": store, "batch_size": 300, **more}
    plain, checked = (run_quickly(tmp_path, str(every), **settings, check_replicas=every) for every in (None, 1))
    assert arrays_equal(parameter_arrays(plain.net), parameter_arrays(checked.net))


def test_a_single_replica_is_not_compared(tmp_path):
    assert run_quickly(tmp_path, devices=device_spec(1), check_replicas=1).plan.check_replicas is None
