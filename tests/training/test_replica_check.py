"""--check-replicas: one bit that differs is found and named; equal replicas train on."""

import re
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
from support.splits import make_batches, make_chain, make_parallelism, make_strategy_plan, softmax_loss
from support.splits import train_strategy as train_on
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


def trained(net):
    return [param for param in net.collect_params().values() if param.grad_req != "null"]


@pytest.fixture(scope="module")
def on_four():
    """Alike on four devices."""
    return network(contexts(4))


@pytest.mark.parametrize("place", range(20))
def test_a_drift_of_one_bit_is_named_wherever_it_is(on_four, place, request):
    random, ctxs = np.random.RandomState(place), contexts(4)
    check = ReplicaCheck(on_four)
    check.compare_replicas(3)
    param, ctx = random.choice(trained(on_four)), ctxs[random.randint(4)]
    bit = (param, ctx, random.randint(np.prod(param.shape)), random.randint(32))
    flip_a_bit(*bit)
    request.addfinalizer(lambda: flip_a_bit(*bit))  # as it was
    others = ", ".join(str(other) for other in ctxs if other != ctx)
    with pytest.raises(DriftError) as caught:
        check.compare_replicas(6)
    assert f"{param.name} on {ctx} differs from {others} after step 6, not yet after step 3;" in str(caught.value)


def test_of_two_replicas_both_are_named():
    net = network(contexts(2))
    flip_a_bit(trained(net)[1], contexts(2)[1], 0, 31)  # 0.0 and -0.0 are equal, and not alike
    first, second = contexts(2)
    with pytest.raises(
        DriftError, match=re.escape(f"{trained(net)[1].name} differs between {first}, {second} after step 1;")
    ):
        ReplicaCheck(net).compare_replicas(1)


def test_a_drift_is_named_in_every_process_of_a_group():
    """The processes may have different numbers of devices."""

    def work(group):
        ctxs = contexts(1 + group.rank)
        net = network(ctxs)
        check = ReplicaCheck(net, group=group)
        check.compare_replicas(1)
        if group.rank == 1:
            flip_a_bit(trained(net)[2], ctxs[1], 3, 0)
        with pytest.raises(DriftError) as caught:
            check.compare_replicas(2)
        return str(caught.value)

    first, second = run_in_threads(2, work)
    ctxs = contexts(2)
    assert first == second
    assert (
        f"{trained(network(ctxs))[2].name} on {ctxs[1]} of process 1 differs from "
        f"{ctxs[0]} of process 0, {ctxs[0]} of process 1 after step 2" in first
    )


def test_running_statistics_may_differ_until_they_are_averaged():
    net = network(contexts(2))
    states = [param for param in net.collect_params().values() if param.grad_req == "null"]
    flip_a_bit(states[0], contexts(2)[1], 0, 5)
    ReplicaCheck(net).compare_replicas(1)
    with pytest.raises(DriftError, match=states[0].name):
        ReplicaCheck(net, statistics=True).compare_replicas(1)


def test_a_frozen_weight_is_no_running_statistic():
    net = nn.Dense(2, in_units=2)
    net.initialize(ctx=contexts(2))
    net.weight.grad_req = "null"
    flip_a_bit(net.weight, contexts(2)[0], 1, 9)
    with pytest.raises(DriftError, match=net.weight.name):
        ReplicaCheck(net).compare_replicas(1)


@pytest.mark.parametrize(("kept", "drifted"), [(0, 1), (1, 0), (0, 7), (7, 0), (1, 7), (7, 1)])
def test_a_replica_whose_checksum_is_zero_or_one_is_compared_as_any_other(kept, drifted):
    """Where a device has no replica, there is nothing in the place of a checksum."""
    weights = {0: 0x6DD90A9D, 1: 0xB6A80CDC, 7: 0x3F800000}
    bits = {of: np.array([[each]], np.uint32).view(np.float32) for of, each in weights.items()}
    assert [zlib.crc32(bits[of].data) for of in (0, 1)] == [0, 1]
    ctxs = contexts(3)
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(ctx=ctxs)
    net.weight.set_data(nd.array(bits[kept]))
    check = ReplicaCheck(net)
    check.compare_replicas(1)
    net.weight.data(ctxs[1])[:] = nd.array(bits[drifted], ctx=ctxs[1])
    said = f"on {ctxs[1]} differs from {ctxs[0]}, {ctxs[2]} after step 2"
    with pytest.raises(DriftError, match=re.escape(said)):
        check.compare_replicas(2)


class Drifting(DataParallel):
    """One replica's weight changes in a bit in step 5."""

    steps = 0

    def step(self, batch):
        losses, self.steps = super().step(batch), self.steps + 1
        if self.steps == 5:
            flip_a_bit(trained(self.net)[0], self.inputs[2], 4, 0)
        return losses


@pytest.mark.parametrize(
    ("way", "copies", "more"),
    [
        ("layers", 2, {"cut": (2,), "schedule": "sequential"}),
        ("pipeline", 2, {"cut": (1,), "schedule": "1f1b"}),
        ("channels", 1, {"channels": "both"}),  # whole parameters alone are on several devices
        ("channels", 2, {"channels": "column"}),
    ],
)
def test_a_drift_of_one_bit_is_found_in_whatever_devices_of_a_split_hold_alike(way, copies, more):
    plan = make_strategy_plan(make_parallelism(way, contexts(2 * copies), 2, max_shard_images=4, **more))
    chain = ([("conv", 4)], [("dense", 5), ("sigmoid", 1)], False, True)
    make = lambda ctxs, start=None: make_chain(chain, start or ctxs)  # noqa: E731
    strategy = strategy_class(way)(make, softmax_loss(), plan, SINGLE_PROCESS)
    check = ReplicaCheck(strategy.net, replicated=strategy.replicated_parameters())
    train_on(strategy, make_batches([7, 1]))
    check.compare_replicas(1)
    several = [param for param in strategy.replicated_parameters() if len(param.list_ctx()) > 1]
    assert several
    for param in several:
        ctx = param.list_ctx()[-1]
        flip_a_bit(param, ctx, 0, 3)
        with pytest.raises(DriftError, match=param.name):
            check.compare_replicas(2)
        flip_a_bit(param, ctx, 0, 3)
    check.compare_replicas(3)


def test_a_run_ends_at_the_first_check_after_the_drift(tmp_path):
    config = TrainConfig(
        devices=device_spec(3), model="mlp", epochs=1, batch_size=40, check_replicas=3, out=str(tmp_path / "run")
    )
    with pytest.raises(DriftError, match="after step 6, not yet after step 3") as caught:
        train(config, Drifting, Reporter())
    [event] = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "event"]
    assert event["message"] == str(caught.value)


@pytest.mark.parametrize(
    ("store", "devices", "more"),
    [
        ("sharded-optimizer", 3, {}),
        ("device", 3, {"batch_size": None, "global_batch_size": 718}),  # one image is left over
        pytest.param(
            "device",
            3,
            {"model": "resnet8", "sync_bn": True, "batch_size": None, "global_batch_size": 359},
            marks=pytest.mark.long,
        ),
        *(
            pytest.param(store, devices, more, marks=pytest.mark.long)
            for store in STORES
            for devices in (2, 3, 4)
            for more in ({"optimizer": "adam"}, {"clip_norm": 1.0, "mixup": 1})
        ),
    ],
)
def test_replicas_that_are_alike_train_on_with_the_same_bits(tmp_path, store, devices, more):
    settings = {"devices": device_spec(devices), "kvstore": store, "batch_size": 300, **more}
    plain, checked = (
        run_quickly(tmp_path, name, **settings, check_replicas=every)
        for name, every in (("plain", None), ("checked", 1))
    )
    assert arrays_equal(parameter_arrays(plain.net), parameter_arrays(checked.net))


def test_a_single_replica_is_not_compared(tmp_path):
    assert run_quickly(tmp_path, devices=device_spec(1), check_replicas=1).plan.check_replicas is None
