"""Programs of docs/faq.md with a loop of their own."""

import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn
from support.devices import contexts
from support.plain_loop import (
    CROSS_ENTROPY,
    initialize_randomly,
    make_perceptron,
    max_difference,
    random_batch,
    recorded_losses,
    run_steps,
    split_over_devices,
    train_program,
)
from support.reference import parameter_arrays

from gluonlab import BucketedTrainer, make_kvstore
from gluonlab.errors import ConfigError, KVStoreError

CLOSE = 2e-7
SGD = dict(optimizer="sgd", optimizer_params={"learning_rate": 0.1})
MOMENTUM = dict(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
ADAM = dict(optimizer="adam", optimizer_params={"learning_rate": 0.01})
STORES = ["device", "local", "ring", "sharded-optimizer"]


def check(program, settings=MOMENTUM, devices=3, make=make_perceptron, close=CLOSE, **ours):
    """Check that ``program`` on several devices ends with the values of plain Gluon on one device."""
    expected = train_program(program, 1, gluon.Trainer, make, **settings)
    assert max_difference(parameter_arrays(initialize_randomly(make(), contexts(1))), expected) > 1e-4  # it has learned
    result = train_program(program, devices, BucketedTrainer, make, **settings, **ours)
    assert max_difference(result, expected) < close


def train_step(trainer, ctxs, loss, *arrays):
    """Make a step with ``loss(*shards)`` on each device."""
    with autograd.record():
        losses = [loss(*shards) for shards in zip(*(split_over_devices(array, ctxs) for array in arrays))]
    autograd.backward(losses)
    trainer.step(len(arrays[0]))


class Repeated(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(4, in_units=4, activation="tanh")

    def hybrid_forward(self, F, x):
        for _ in range(24):
            x = self.layer(x) + x
        return x


def test_a_layer_that_is_used_24_times_accumulates_with_grad_req_add():
    """https://github.com/apache/mxnet/issues/17989"""

    def make():
        net = Repeated()
        net.collect_params().setattr("grad_req", "add")
        return net

    def program(net, trainer, ctxs):
        net.hybridize()
        for part in range(2):
            x, _ = random_batch(part)
            with autograd.record():
                losses = [(net(a) ** 2).mean(axis=1) for a in split_over_devices(x, ctxs)]
            autograd.backward(losses)
        trainer.step(24)

    slow = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 1e-4}}
    check(program, slow, devices=2, make=make, close=1e-6)


def adding():
    """A perceptron whose gradients are added to those that are there."""
    net = make_perceptron()
    net.collect_params().setattr("grad_req", "add")
    return net


@pytest.mark.parametrize("store", STORES)
def test_four_parts_added_up_are_the_whole_batch(store):
    """https://github.com/apache/mxnet/issues/16686

    The right value is one step with the gradient of the four parts as one batch.
    """

    def in_parts(net, trainer, ctxs):
        for part in range(4):
            autograd.backward(recorded_losses(net, part, ctxs))
        trainer.step(48)

    def at_once(net, trainer, ctxs):
        x, y = (np.concatenate(arrays) for arrays in zip(*map(random_batch, range(4))))
        with autograd.record():
            loss = CROSS_ENTROPY(net(nd.array(x)), nd.array(y))
        loss.backward()
        trainer.step(48)

    right = train_program(at_once, 1, gluon.Trainer, **SGD)
    assert max_difference(train_program(in_parts, 3, BucketedTrainer, adding, kvstore=store, **SGD), right) < CLOSE


@pytest.mark.parametrize("store", STORES)
def test_gradients_that_are_never_set_to_zero_pile_up_as_on_one_device(store):
    """https://github.com/apache/mxnet/issues/18659"""
    check(run_steps, SGD, make=adding, close=1e-6, kvstore=store)


def test_a_device_without_a_shard_in_the_last_part_of_an_accumulation():
    """https://github.com/dmlc/gluon-nlp/issues/982"""

    def program(net, trainer, ctxs):
        for images in (12, 1):
            autograd.backward(recorded_losses(net, images, ctxs, images))
        trainer.allreduce_grads()
        trainer.update(13)
        net.collect_params().zero_grad()

    check(program, SGD, make=adding)


def train_clipped(norm):
    """Return the parameters after three steps of gradient descent with the clipped mean gradient, in NumPy."""
    net = initialize_randomly(make_perceptron(), contexts(1))
    for step in range(3):
        recorded_losses(net, step, contexts(1))[0].backward()
        grads = [param.grad().asnumpy() / 12 for param in net.collect_params().values()]
        scale = min(1.0, norm / np.sqrt(sum((grad.astype("float64") ** 2).sum() for grad in grads)))
        for param, grad in zip(net.collect_params().values(), grads):
            param.set_data(param.data() - nd.array(0.1 * scale * grad))
    return parameter_arrays(net)


def test_the_global_norm_is_that_of_the_sum_over_all_devices():
    """https://github.com/apache/mxnet/issues/12859"""
    result = train_program(run_steps, 3, BucketedTrainer, clip_norm=0.05, **SGD)
    assert max_difference(result, train_clipped(0.05)) < CLOSE


def test_gradients_are_clipped_by_hand_between_allreduce_and_update():
    """https://github.com/apache/mxnet/issues/16882"""

    def program(net, trainer, ctxs):
        for step in range(3):
            autograd.backward(recorded_losses(net, step, ctxs))
            trainer.allreduce_grads()
            for ctx in ctxs:
                grads = [param.grad(ctx) for param in net.collect_params().values()]
                gluon.utils.clip_global_norm(grads, 12 * 0.05)
            trainer.update(12)

    result = train_program(program, 2, BucketedTrainer, kvstore="ring", **SGD)
    assert max_difference(result, train_clipped(0.05)) < CLOSE


def check_saved_states(folder, devices, trainer, ctxs, **ours):
    """Check that a training resumes on other devices with saved states."""

    def program(net, trainer, ctxs):
        run_steps(net, trainer, ctxs)
        trainer.save_states(str(folder / "states"))
        net.save_parameters(str(folder / "parameters"))
        run_steps(net, trainer, ctxs, steps=range(3, 6))

    expected = train_program(program, devices, trainer, **ADAM)
    net = make_perceptron()
    net.load_parameters(str(folder / "parameters"), ctx=ctxs)
    resumed = BucketedTrainer(net.collect_params(), **ADAM, **ours)
    resumed.load_states(str(folder / "states"))
    run_steps(net, resumed, ctxs, steps=range(3, 6))
    assert max_difference(parameter_arrays(net), expected) < CLOSE


def test_states_of_three_devices_are_loaded_on_one_other(tmp_path):
    """https://github.com/apache/mxnet/issues/15918"""
    check_saved_states(tmp_path, 3, BucketedTrainer, [mx.cpu(5)])


def test_states_of_gluons_own_trainer_are_loaded_on_several_devices(tmp_path):
    """https://github.com/horovod/horovod/issues/1897"""
    check_saved_states(tmp_path, 1, gluon.Trainer, contexts(2), kvstore="sharded-optimizer")


def test_a_schedule_counts_steps_and_not_devices():
    """https://github.com/apache/mxnet/issues/12713

    The right rates are 1, 1, 0.1, 0.1, 0.01, 0.01.
    """
    rates = []

    def program(net, trainer, ctxs):
        for step in range(6):
            run_steps(net, trainer, ctxs, steps=[step])
            rates.append(trainer.learning_rate)

    schedule = mx.lr_scheduler.MultiFactorScheduler([2, 4], 0.1, base_lr=1.0)
    settings = {"optimizer": "sgd", "optimizer_params": {"lr_scheduler": schedule}}
    train_program(program, 3, BucketedTrainer, **settings)
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_a_rate_set_between_steps_reaches_a_store_that_updates():
    """https://github.com/apache/mxnet/issues/15919"""

    def program(net, trainer, ctxs):
        for step in range(3):
            trainer.set_learning_rate(0.1 * 0.5**step)
            run_steps(net, trainer, ctxs, steps=[step])

    check(program, kvstore="sharded-optimizer")


def test_the_first_rate_is_the_schedules():
    """https://github.com/dmlc/gluon-cv/issues/1350

    The right value is the schedule's base_lr.
    """
    net = initialize_randomly(make_perceptron(), contexts(2))
    schedule = mx.lr_scheduler.CosineScheduler(100, base_lr=0.5)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    assert trainer.learning_rate == 0.5


def test_layers_have_rates_of_their_own():
    """https://github.com/apache/mxnet/issues/13391"""

    def make():
        net = make_perceptron()
        net[0].collect_params().setattr("lr_mult", 0.01)
        net[1].bias.lr_mult = 3.0
        return net

    check(run_steps, make=make)


def test_a_layer_is_frozen_and_later_trained():
    """https://github.com/dmlc/gluon-nlp/issues/333"""

    def run(devices, kind):
        ctxs = contexts(devices)
        net = initialize_randomly(make_perceptron(), ctxs)
        for request in ("null", "write"):
            net[0].collect_params().setattr("grad_req", request)
            run_steps(net, kind(net.collect_params(), **MOMENTUM), ctxs)
        return parameter_arrays(net)

    assert max_difference(run(2, BucketedTrainer), run(1, gluon.Trainer)) < CLOSE


def test_biases_do_not_decay():
    """https://github.com/apache/mxnet/pull/11953"""

    def make():
        net = make_perceptron()
        net.collect_params(".*beta|.*gamma|.*bias").setattr("wd_mult", 0.0)
        return net

    settings = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1, "wd": 0.5}}
    check(run_steps, settings, make=make)


class Tied(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.encoder = nn.Embedding(11, 6)
            self.decoder = nn.Dense(11, in_units=6, flatten=False, params=self.encoder.params)

    def hybrid_forward(self, F, words):
        return self.decoder(F.tanh(self.encoder(words)))


def test_encoder_and_decoder_share_a_weight():
    """https://github.com/apache/mxnet/issues/16684"""

    def program(net, trainer, ctxs):
        net.hybridize(static_alloc=True)
        for step in range(3):
            words = np.random.RandomState(step).randint(0, 11, (9, 5))
            train_step(trainer, ctxs, lambda a: CROSS_ENTROPY(net(a[:, :-1]), a[:, 1:]), words)

    check(program, ADAM, make=Tied)


def test_the_batch_size_of_a_step_is_that_of_all_devices():
    """https://github.com/zackchase/mxnet-the-straight-dope/issues/165

    With mean losses of equal shards the number of devices takes its place.
    """

    def mean_loss(scores, labels):
        return CROSS_ENTROPY(scores, labels).mean()

    def of_means(net, trainer, ctxs):
        for step in range(3):
            autograd.backward(recorded_losses(net, step, ctxs, loss=mean_loss))
            trainer.step(len(ctxs))

    right = train_program(run_steps, 1, gluon.Trainer, **SGD)
    assert max_difference(train_program(run_steps, 3, BucketedTrainer, **SGD), right) < CLOSE
    assert max_difference(train_program(of_means, 3, BucketedTrainer, **SGD), right) < CLOSE


class Square(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        squares = nd.array(in_data[0].asnumpy() ** 2, ctx=in_data[0].context)
        self.assign(out_data[0], req[0], squares)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@mx.operator.register("square_of_reports")
class SquareProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Square()


class WithSquare(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Dense(5, in_units=4), nn.Dense(3, in_units=5)

    def hybrid_forward(self, F, x):
        return self.last(F.Custom(self.first(x), op_type="square_of_reports"))


@pytest.mark.parametrize("hybridize", [False, True])
def test_an_operator_in_python_runs_on_several_devices(hybridize):
    """https://github.com/apache/mxnet/issues/8884"""

    def program(net, trainer, ctxs):
        net.hybridize(hybridize)
        run_steps(net, trainer, ctxs)

    check(program, SGD, make=WithSquare, close=1e-6)


class Speech(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.recurrent = rnn.LSTM(6, layout="NTC", input_size=4, bidirectional=True)
        self.scores = nn.Dense(5, flatten=False, in_units=12)

    def hybrid_forward(self, F, x):
        return self.scores(self.recurrent(x))


def test_connectionist_temporal_classification_of_seven_sequences():
    """https://github.com/apache/mxnet/issues/6587"""

    def program(net, trainer, ctxs):
        loss = gluon.loss.CTCLoss(layout="NTC")
        for step in range(3):
            random = np.random.RandomState(step)
            x, y = random.normal(size=(7, 9, 4)), random.randint(0, 4, (7, 3))
            train_step(trainer, ctxs, lambda a, b: loss(net(a), b), x, y)

    check(program, SGD, make=Speech, close=1e-6)


class Critic(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Dense(5, in_units=4), nn.Dense(1, in_units=5)

    def hybrid_forward(self, F, x):
        return self.last(F.sin(self.first(x)))


def test_a_gradient_penalty_is_a_gradient_of_a_gradient():
    """https://github.com/apache/mxnet/issues/12529"""

    def program(net, trainer, ctxs):
        for step in range(3):
            losses = []
            with autograd.record():
                for x in split_over_devices(random_batch(step)[0], ctxs):
                    x.attach_grad()
                    scores = net(x)
                    slopes = autograd.grad(scores, [x], create_graph=True, retain_graph=True)[0]
                    losses.append(scores.reshape(-1) + 10 * (slopes.norm(axis=1) - 1) ** 2)
            autograd.backward(losses)
            trainer.step(12)

    slow = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.01}}
    check(program, slow, make=Critic, close=1e-6)


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_a_parameter_set_by_hand_after_a_step_stays_so(store):
    """https://github.com/apache/mxnet/issues/14735"""

    def program(net, trainer, ctxs):
        for step in range(3):
            run_steps(net, trainer, ctxs, steps=[step])
            net[1].bias.set_data(net[1].bias._reduce() * 0)
            for ctx in ctxs:  # and without a copy
                net[0].weight.data(ctx)[:] = net[0].weight.data(ctx).clip(-0.3, 0.3)

    check(program, kvstore=store)


def test_a_thread_for_each_device():
    """https://github.com/dmlc/gluon-nlp/issues/999"""

    def program(net, trainer, ctxs):
        def work(x, y):
            with autograd.record():
                loss = CROSS_ENTROPY(net(x), y)
            loss.backward()

        for step in range(3):
            x, y = random_batch(step)
            parts = zip(split_over_devices(x, ctxs), split_over_devices(y, ctxs))
            threads = [threading.Thread(target=work, args=part) for part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            trainer.step(12)

    check(program, ADAM)


def test_gluons_estimator_trains_with_it(capsys, caplog):
    """https://github.com/apache/mxnet/pull/14629"""
    from mxnet.gluon.contrib.estimator import Estimator

    data = gluon.data.ArrayDataset(*(array.astype("float32") for array in random_batch(0, 24)))

    def program(net, trainer, ctxs):
        estimator = Estimator(net, CROSS_ENTROPY, train_metrics=mx.metric.Accuracy(), trainer=trainer, context=ctxs)
        estimator.fit(gluon.data.DataLoader(data, batch_size=8), epochs=2)

    check(program, devices=2)


def test_without_a_store_nothing_would_sum():
    """https://github.com/apache/mxnet/issues/6007

    The right answer is a refusal: replicas would part.
    """
    net = initialize_randomly(make_perceptron(), contexts(2))
    with pytest.raises(KVStoreError, match="kvstore=None does not sum the gradients of the 2 devices"):
        BucketedTrainer(net.collect_params(), "sgd", kvstore=None)


def test_clip_gradient_looks_at_the_sum():
    """https://github.com/apache/mxnet/issues/898"""
    rate = {"learning_rate": 0.1, "clip_gradient": 0.01}
    check(run_steps, {"optimizer": "sgd", "optimizer_params": rate})


@pytest.mark.parametrize("kind", [BucketedTrainer, gluon.Trainer])
def test_two_bits_send_what_was_left_over_later(kind):
    """https://github.com/apache/mxnet/issues/8979

    Each device's gradient is 0.3: with a threshold of 0.5 it sends 0.5 in steps 2, 4 and 5.
    """
    ctxs = contexts(2)
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.Zero(), ctx=ctxs)
    trainer = kind(
        net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=make_kvstore("device"),
        compression_params={"type": "2bit", "threshold": 0.5},
    )  # fmt: skip
    weights = []
    for _ in range(5):
        with autograd.record():
            losses = [net(nd.full((1, 1), 0.3, ctx=ctx)) for ctx in ctxs]
        autograd.backward(losses)
        trainer.step(1)
        weights.append(net.weight.data(ctxs[1]).asnumpy().item())
    assert weights == [0, -1, -1, -2, -3]


class TwoHeads(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Dense(5, in_units=4)
        self.kind, self.size = nn.Dense(3, in_units=5), nn.Dense(1, in_units=5)

    def hybrid_forward(self, F, x):
        features = F.tanh(self.trunk(x))
        return self.kind(features), self.size(features)


def test_two_outputs_have_two_losses():
    """https://github.com/apache/mxnet/issues/9962"""

    def program(net, trainer, ctxs):
        net.hybridize(static_alloc=True, static_shape=True)
        huber = gluon.loss.HuberLoss()

        def loss(x, y):
            kind, size = net(x)
            return CROSS_ENTROPY(kind, y) + 0.3 * huber(size, y)

        for step in range(3):
            train_step(trainer, ctxs, loss, *random_batch(step))

    check(program, make=TwoHeads)


def test_a_recurrent_layer_waits_for_its_shapes_on_every_device():
    """https://github.com/apache/mxnet/issues/7589"""

    def run(devices, kind):
        ctxs, net = contexts(devices), nn.HybridSequential()
        net.add(rnn.GRU(6, layout="NTC"), nn.Dense(3))
        net.initialize(mx.init.Constant(0.1), ctx=ctxs)
        net.hybridize()
        trainer = kind(net.collect_params(), **SGD)
        for step in range(3):
            random = np.random.RandomState(step)
            x, y = random.normal(size=(6, 5, 4)), random.randint(0, 3, 6)
            train_step(trainer, ctxs, lambda a, b: CROSS_ENTROPY(net(a), b), x, y)
        return parameter_arrays(net)

    assert max_difference(run(2, BucketedTrainer), run(1, gluon.Trainer)) < CLOSE


class Language(gluon.Block):
    def __init__(self):
        super().__init__()
        self.recurrent = rnn.LSTM(6, input_size=4)
        self.scores = nn.Dense(3, flatten=False, in_units=6)

    def forward(self, x, states):
        outputs, states = self.recurrent(x, states)
        return self.scores(outputs), states


def test_each_device_carries_the_hidden_states_of_its_own_sequences():
    """https://github.com/dmlc/gluon-nlp/pull/170"""

    def program(net, trainer, ctxs):
        states = [net.recurrent.begin_state(12 // len(ctxs), ctx=ctx) for ctx in ctxs]
        for step in range(3):
            random = np.random.RandomState(step)
            x, y = random.normal(size=(5, 12, 4)), random.randint(0, 3, (5, 12))
            losses = []
            with autograd.record():
                parts = [gluon.utils.split_and_load(nd.array(each), ctxs, batch_axis=1) for each in (x, y)]
                for place, (a, b) in enumerate(zip(*parts)):
                    own = [state.detach() for state in states[place]]
                    scores, states[place] = net(a, own)
                    losses.append(CROSS_ENTROPY(scores.transpose((1, 0, 2)), b.T))
            autograd.backward(losses)
            trainer.step(12)

    check(program, SGD, make=Language)


def test_a_network_in_float64():
    """https://github.com/apache/mxnet/issues/9156"""

    def run(devices, kind):
        ctxs = contexts(devices)
        net = initialize_randomly(make_perceptron(), ctxs)
        net.cast("float64")
        trainer = kind(net.collect_params(), **ADAM)
        for step in range(3):
            train_step(trainer, ctxs, lambda a, b: CROSS_ENTROPY(net(a.astype("float64")), b), *random_batch(step))
        return parameter_arrays(net)

    result = run(3, BucketedTrainer)
    assert result[0].dtype == np.float64
    assert max_difference(result, run(1, gluon.Trainer)) < 1e-14


def test_sparse_gradients_are_for_gluons_own_trainer():
    """https://github.com/apache/mxnet/pull/10924"""

    def program(net, trainer, ctxs):
        for step in range(2):
            words = np.random.RandomState(step).randint(0, 10, 8)
            train_step(trainer, ctxs, lambda a: (net(a) ** 2).sum(axis=1), words)

    def make():
        return nn.Embedding(10, 4, sparse_grad=True)

    expected = train_program(program, 1, gluon.Trainer, make, **SGD)
    result = train_program(program, 2, gluon.Trainer, make, kvstore=make_kvstore("device"), **SGD)
    assert max_difference(result, expected) < CLOSE
    with pytest.raises(KVStoreError, match=r"sparse gradients, .*, or use gluon.Trainer with"):
        train_program(program, 2, BucketedTrainer, make, **SGD)


def test_another_frameworks_name_of_the_learning_rate():
    """https://github.com/apache/mxnet/pull/7659

    The right answer is a refusal that has Gluon's name.
    """
    net = initialize_randomly(make_perceptron(), contexts(2))
    with pytest.raises(ConfigError, match=r"'lr'; use 'learning_rate' for the learning rate$"):
        BucketedTrainer(net.collect_params(), "sgd", {"lr": 0.1})
