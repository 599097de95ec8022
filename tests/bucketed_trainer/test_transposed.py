"""BucketedTrainer with transposed convolutions, whose arrays oneDNN stores in its own layouts."""

import copy
import gc
import threading

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon
from mxnet.gluon import nn
from support.devices import contexts
from support.reference import cpu_contexts, parameter_arrays, relative_distance, set_parameter_arrays, train_on_devices

from gluonlab.bucketed_trainer.buckets import convolution_parameters
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.engine.mxnet_fixes import live_blocks

KINDS = {1: nn.Conv1DTranspose, 2: nn.Conv2DTranspose, 3: nn.Conv3DTranspose}


class UsersDeconvolution(gluon.HybridBlock):
    def __init__(self, channels, inputs):
        super().__init__()
        self.channels = channels
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(inputs, channels, 3, 3))

    def hybrid_forward(self, F, x, weight):
        return F.Deconvolution(x, weight, kernel=(3, 3), num_filter=self.channels, no_bias=True)


def make_generator(dims, inputs, channels, own):
    net = nn.HybridSequential()
    up = UsersDeconvolution(channels, inputs) if own and dims == 2 else KINDS[dims](channels, 3, in_channels=inputs)
    net.add(up, nn.Activation("tanh"), nn.Dense(3, in_units=channels * 6**dims))
    return net


@settings(max_examples=25)
@given(
    dims=st.sampled_from([1, 2, 2, 3]),
    inputs=st.sampled_from([1, 3, 5, 8, 16, 17]),
    channels=st.sampled_from([2, 3, 5, 8, 16, 20]),
    own=st.booleans(),
    store=st.sampled_from(["device", "ring", "sharded-optimizer"]),
    devices=st.integers(1, 3),
    predicts=st.booleans(),
)
@pytest.mark.long
def test_transposed_convolutions_train_as_with_gluons_trainer(dims, inputs, channels, own, store, devices, predicts):
    random = np.random.RandomState(0)
    shape = (3, inputs, *[4] * dims)
    batches = [(random.normal(size=shape).astype("float32"), random.randint(0, 3, 3)) for _ in range(3)]
    start, results = None, []
    for ctxs, make, kvstore in ((cpu_contexts(1), gluon.Trainer, None), (contexts(devices), BucketedTrainer, store)):
        net = make_generator(dims, inputs, channels, own)
        net.initialize(ctx=ctxs)
        start = start or parameter_arrays(net)
        set_parameter_arrays(net, start)
        trainer = make(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kvstore)
        for batch in batches:
            train_on_devices(net, trainer, ctxs, [batch])
            # of three and five axes, plain Gluon cannot read a weight afterwards
            if predicts and dims == 2:
                # after the prediction MXNet knows that it has changed the layout of the weight
                net(mx.nd.array(batch[0], ctx=ctxs[0])).wait_to_read()
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) < 1e-5


def test_weights_belong_to_ordinary_convolutions_if_no_other_block_has_them():
    plain, tied = nn.Conv2D(3, 3, in_channels=5), nn.Conv2D(3, 3, in_channels=5, use_bias=False)
    decoder = nn.Conv2DTranspose(5, 3, in_channels=3, params=tied.params, use_bias=False)
    assert decoder.weight is tied.weight
    result = convolution_parameters(live_blocks())
    assert plain.weight in result
    assert tied.weight not in result
    assert gluon.Parameter("alone", shape=(3, 5, 3, 3)) not in result


def test_a_network_hidden_from_the_garbage_collector_is_found():
    gc.collect()
    hidden = nn.Conv2D(3, 3, in_channels=5)
    gc.freeze()
    assert hidden.weight in convolution_parameters(live_blocks())


class EqualBlock(nn.Conv2D):
    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, EqualBlock)


def test_blocks_are_listed_while_they_live_even_if_equal_and_unhashable():
    blocks = [EqualBlock(3, 3, in_channels=5), EqualBlock(3, 3, in_channels=5)]
    blocks.append(copy.copy(blocks[0]))
    numbers = {id(block) for block in blocks}
    assert numbers <= {id(block) for block in live_blocks()}
    assert {block.weight for block in blocks} <= convolution_parameters(live_blocks())
    del blocks
    gc.collect()
    assert not numbers & {id(block) for block in live_blocks()}


def test_blocks_that_were_there_before_gluonlab_are_found(python):
    # MXNet needs names that NumPy has dropped, which uninstall leaves
    first = "from gluonlab.engine import mxnet_setup; mxnet_setup.remove_setup_hook()"
    instance = "from mxnet.gluon import nn; block = nn.Conv2D(3, 3, in_channels=5); mxnet_setup.install_setup_hook()"
    result = python(
        "-c",
        f"{first}; {instance}; from gluonlab.engine.mxnet_fixes import live_blocks; print(live_blocks() == [block])",
    )
    assert result.stdout.strip() == "True", result.stderr


@pytest.mark.parametrize("bucket_bytes", [0, 2**20])
def test_ordinary_convolutions_share_buckets(bucket_bytes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, in_channels=5), nn.Conv2D(20, 3, in_channels=3))
    net.initialize()
    trainer = BucketedTrainer(net.collect_params(), "sgd", kvstore=None, bucket_bytes=bucket_bytes)
    assert len(trainer.buckets) == (1 if bucket_bytes else 4)


@pytest.mark.long
def test_looking_for_networks_disturbs_no_tuple_that_another_thread_is_making():
    stop, wrong = threading.Event(), []

    def make_tuples():
        while not stop.is_set():
            try:
                tuple(number for number in range(60))
            except SystemError as error:
                wrong.append(error)

    other = threading.Thread(target=make_tuples)
    other.start()
    for _ in range(40):
        live_blocks()
    stop.set()
    other.join()
    assert not wrong
