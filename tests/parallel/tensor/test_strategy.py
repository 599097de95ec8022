"""Layers whose channels are split over devices train as the whole network does on one."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts
from support.reference import shard_batch
from support.splits import (
    CLASSES,
    IMAGE,
    chains,
    make_batches,
    make_chain,
    make_parallelism,
    make_strategy_plan,
    relative_difference,
    softmax_loss,
    train_chain_on_one_device,
    train_strategy,
)

from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.errors import ModelError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.models.builtin_networks import alexnet_2towers
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.tensor.layout_planner import plan_layout
from gluonlab.parallel.tensor.strategy import tensor_parallel

TOLERANCE = 1e-5
TOWERS = ((8, 3, 1, 1, False, True), (8, 3, 1, 1, True, False), (12, 3, 1, 1, False, False), (12, 3, 1, 1, True, False))


def towers(ctx=None):
    """AlexNet's layout, smaller, and without Dropout."""
    return alexnet_2towers(CLASSES, TOWERS, hidden=8, dropout=0.0)


def residual(ctx=None):
    """Convolutions with shortcuts, two of which meet."""
    net = nn.HybridSequential(prefix="residual_")
    with net.name_scope():
        net.add(nn.Conv2D(6, 3, padding=1, activation="relu"), Shortcut(6), Shortcut(6))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(CLASSES))
    return net


class Shortcut(nn.HybridBlock):
    """x + two convolutions of x."""

    def __init__(self, channels):
        super().__init__()
        with self.name_scope():
            self.first = nn.Conv2D(channels, 3, padding=1, activation="relu")
            self.second = nn.Conv2D(channels, 3, padding=1)

    def hybrid_forward(self, F, x):
        return F.relu(x + self.second(self.first(x)))


def normalized(ctx=None):
    """BatchNorm behind a convolution, and behind a dense layer."""
    net = nn.HybridSequential(prefix="normalized_")
    with net.name_scope():
        net.add(nn.Conv2D(6, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(5, 1, groups=1))
        net.add(nn.BatchNorm(), nn.Flatten(), nn.Dense(7), nn.BatchNorm(), nn.Dense(CLASSES))
    return net


def depthwise(ctx=None):
    """MobileNet's pairs: each channel by itself, then all together."""
    net = nn.HybridSequential(prefix="depthwise_")
    with net.name_scope():
        net.add(nn.Conv2D(5, 1, activation="relu"), nn.Conv2D(5, 3, groups=5))
        net.add(nn.Conv2D(4, 1, activation="relu"), nn.Flatten(), nn.Dense(CLASSES))
    return net


NETWORKS = {make.__name__: make for make in (towers, residual, normalized, depthwise)}


def network_maker(name):
    return seeded_maker(NETWORKS[name])


def seeded_maker(make_layers):
    """A function that makes the network with the same parameters each time."""

    def make(ctxs=None, start=None):
        with mx.name.NameManager():
            net = make_layers()
        mx.random.seed(5)
        net.initialize(mx.init.Xavier(), ctx=start or ctxs)
        net(nd.zeros((1, *IMAGE), ctx=(start or ctxs)[0]))
        return net

    return make


def sequence_maker(make_first_layers):
    def make_layers():
        net = nn.HybridSequential()
        net.add(*make_first_layers(), nn.Dense(CLASSES))
        return net

    return seeded_maker(make_layers)


cases = st.fixed_dictionaries(
    {
        "ways": st.integers(2, 4),
        "copies": st.integers(1, 2),
        "channels": st.sampled_from(["both", "column", "row"]),
        "microbatches": st.sampled_from([None, 2, 3]),
        "sizes": st.lists(st.integers(1, 9), min_size=3, max_size=3),
        "kvstore": st.sampled_from(["device", "ring", "sharded"]),
        "optimizer": st.sampled_from(["sgd", "adam"]),
        "clip_norm": st.sampled_from([None, 0.05]),
    }
)


def make_case(ways, copies, sizes, channels="both", microbatches=None):
    return {
        "ways": ways, "copies": copies, "channels": channels, "microbatches": microbatches, "sizes": sizes,
        "kvstore": "device", "optimizer": "sgd", "clip_norm": None,
    }  # fmt: skip


def strategy_of(make, case):
    ctxs = contexts(case["ways"] * case["copies"])
    share = max(case["sizes"])
    split = make_parallelism("tensor", ctxs, case["ways"], channels=case["channels"], max_shard_images=share)
    plan = make_strategy_plan(
        split, case["optimizer"], Microbatches(case["microbatches"]), case["kvstore"], clip_norm=case["clip_norm"]
    )
    return tensor_parallel(make, softmax_loss(), plan, SINGLE_PROCESS)


def check_trains_as_one(make, case):
    batches = make_batches(case["sizes"])
    losses, params = train_strategy(strategy_of(make, case), batches)
    [ctx] = contexts(1)
    expected_losses, expected = train_chain_on_one_device(make([ctx]), batches, case)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5, atol=1e-6)
    assert relative_difference(params, expected) <= TOLERANCE


@given(st.sampled_from(["towers", "residual", "depthwise"]), cases)
@settings(max_examples=4, deadline=None)
def test_any_layout_and_batch_trains_as_one_device(name, case):
    check_trains_as_one(network_maker(name), case)


@given(chains, cases)
@settings(max_examples=4, deadline=None)
def test_a_random_chain_trains_as_one_device(chain, case):
    make = lambda ctxs, start=None: make_chain(chain, start or ctxs)  # noqa: E731
    try:
        strategy_of(make, case)
    except ModelError as error:
        assert "no layer has enough channels for" in str(error)
        return
    check_trains_as_one(make, case)


@pytest.mark.long
@given(st.sampled_from(["towers", "residual", "depthwise"]), chains, cases)
@settings(max_examples=100, deadline=None)
def test_many_more_cases_train_as_one_device(name, chain, case):
    check_trains_as_one(network_maker(name), case)
    test_a_random_chain_trains_as_one_device.hypothesis.inner_test(chain, case)


@pytest.mark.parametrize("channels", ["both", "column", "row"])
def test_batchnorm_sees_its_channels_of_the_whole_batch(channels):
    """With one copy, all statistics are those of one device."""
    case = make_case(2, 1, [8, 8, 6], channels)
    strategy = strategy_of(network_maker("normalized"), case)
    losses, _ = train_strategy(strategy, make_batches(case["sizes"]))
    strategy.sync_running_statistics()
    params = {name: array.asnumpy() for name, array in strategy.parameters().items()}
    reference = network_maker("normalized")([mx.cpu()])  # cuDNN's running variance is of n - 1 values
    expected_losses, expected = train_chain_on_one_device(reference, make_batches(case["sizes"]), case)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    assert relative_difference(params, expected) <= 5 * TOLERANCE
    for name, param in strategy.net._collect_params_with_prefix().items():
        error = np.linalg.norm(param.list_data()[0].asnumpy() - expected[name])
        assert error <= 1e-4 * max(1, np.linalg.norm(expected[name])), name


def layout_of(make, ways, channels="both"):
    net = make(contexts(1))
    shapes = {IMAGES: (4, *IMAGE), LABELS: (4,)}
    graph = loss_graph(net, softmax_loss(), lambda F, images: images)
    return plan_layout(graph, shapes, set(net.collect_params()), ways, channels)


@pytest.mark.parametrize(
    ("name", "ways"),
    [("towers", ["column", "local", "row", "local", "row", "column", "row"]), ("residual", ["column", "row"] * 3)],
)
def test_only_row_parallel_layers_need_a_sum(name, ways):
    """The towers exchange values before the third convolution and dense layers."""
    layout = layout_of(network_maker(name), 2)
    assert (list(layout.layers.values()), layout.allreduce_count) == (ways, 3)


@pytest.mark.parametrize("name", ["towers", "residual", "depthwise"])
@pytest.mark.parametrize("channels", ["column", "row"])
def test_layers_are_split_only_in_the_requested_way(channels, name):
    """Except grouped convolutions, whose channels are separate anyway."""
    ways = set(layout_of(network_maker(name), 2, channels).layers.values())
    assert channels in ways and ways <= {channels, "local"}


def test_parameters_begin_as_those_of_the_whole_network():
    strategy, expected = (
        strategy_of(network_maker("depthwise"), make_case(3, 2, [4])),
        network_maker("depthwise")(contexts(1)),
    )
    params = expected._collect_params_with_prefix()
    for name, array in strategy.parameters().items():
        assert (array.asnumpy() == params[name].list_data()[0].asnumpy()).all(), name


def test_scores_are_those_of_the_whole_network():
    strategy = strategy_of(network_maker("towers"), make_case(2, 2, [7], microbatches=2))
    [(images, labels)] = make_batches([7])
    batch = shard_batch((images, labels), strategy.inputs)
    parts = sorted(((part.device, part.scores.asnumpy()) for part in strategy.score(batch)), key=lambda part: part[0])
    [ctx] = contexts(1)
    expected = network_maker("towers")([ctx])(nd.array(images, ctx=ctx)).asnumpy()
    np.testing.assert_allclose(np.concatenate([scores for _, scores in parts]), expected, rtol=1e-5, atol=1e-6)


def test_a_network_without_enough_channels_is_refused():
    with pytest.raises(ModelError, match="no layer has enough channels for 80 devices"):
        layout_of(sequence_maker(lambda: [nn.Dense(1)]), 80)


@pytest.mark.parametrize("axes", [(), (2, 3), (0,), (1,), (1, 2)], ids=str)
def test_devices_draw_random_numbers_for_their_own_channels(axes):
    """So that a Dropout that draws once for all channels is refused."""
    make = sequence_maker(lambda: [nn.Conv2D(4, 1), nn.Dropout(0.5, axes=axes)])
    if 1 in axes:
        with pytest.raises(ModelError, match=r"the Dropout .* drops all channels together"):
            layout_of(make, 2)
    else:
        assert layout_of(make, 2).layers
