"""Momentum that does not contain the rate, with every trainer, for any sequence of rates."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from support import optimizer_references as references
from support.devices import contexts
from support.reference import arrays_equal

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers import NAG, SGD

SHAPES = {"a": (3, 5), "b": (4,), "c": (7,)}
LR_MULTS = {"a": 1.0, "b": 0.5, "c": 1.0}
WD = 0.05


def bucketed_trainer_factory(store, bucket_bytes=50, **settings):
    return lambda params, optimizer: BucketedTrainer(
        params, optimizer, None, make_kvstore(store), bucket_bytes=bucket_bytes, **settings
    )


def gluon_trainer_factory(store, **options):
    return lambda params, optimizer: gluon.Trainer(params, optimizer, kvstore=make_kvstore(store), **options)


TRAINERS = {
    "gluon, every device updates": gluon_trainer_factory("device", update_on_kvstore=False),
    "gluon, the store updates": gluon_trainer_factory("device"),
    "gluon, shards": gluon_trainer_factory("sharded-optimizer"),
    "buckets": bucketed_trainer_factory("device"),
    "one bucket": bucketed_trainer_factory("ring", 2**20),
    "shards of buckets": bucketed_trainer_factory("sharded-optimizer"),
}
SOME_RATES = st.sampled_from([0.0, 0.1, 0.3])
RATES = st.lists(st.one_of(st.just(0.0), st.floats(1e-18, 1e-12), st.floats(1e-4, 0.5)), min_size=1, max_size=7)


class Run:
    """Three parameters on k devices with random gradients, and the same parameters in float64."""

    def __init__(self, k, make_trainer, cls, seed=0, **options):
        self.ctxs, self.random = contexts(k), np.random.RandomState(seed)
        self.params = gluon.ParameterDict()
        self.expected, self.steps = {}, []
        for name, shape in SHAPES.items():
            param = self.params.get(name, shape=shape, lr_mult=LR_MULTS[name])
            param.initialize(ctx=self.ctxs)
            self.expected[name] = self.random.standard_normal(shape).astype("float32").astype("float64")
            param.set_data(nd.array(self.expected[name]))
        self.cls, self.options = cls, {"wd": WD, "momentum": 0.9, **options}
        self.trainer = make_trainer(self.params, cls(learning_rate=0.1, **self.options))

    def step(self, rate, counts=True, used=tuple(SHAPES)):
        """Make a step with some parameters; the others keep their gradients of an earlier step."""
        grads = {name: self.random.standard_normal(SHAPES[name]).astype("float32") for name in used}

        def make_loss(name, grad, ctx):
            return (self.params.get(name).data(ctx) * nd.array(grad / len(self.ctxs), ctx=ctx)).sum()

        with autograd.record():
            losses = [sum(make_loss(*item, ctx) for item in grads.items()) for ctx in self.ctxs]
        autograd.backward(losses)
        self.trainer.set_learning_rate(rate)
        self.trainer.step(1, ignore_stale_grad=set(used) != set(SHAPES))
        if counts:
            self.steps.append((grads, rate))

    def check(self):
        reference = {SGD: references.sgd, NAG: references.nag}[self.cls]
        for name, start in self.expected.items():
            own = [
                (grads[name].astype("float64"), rate * LR_MULTS[name]) for grads, rate in self.steps if name in grads
            ]
            *_, expected = reference(start, own, **self.options)
            size = max(np.abs(expected).max(), np.abs(start).max())
            for ctx in self.ctxs:
                assert np.abs(self.params.get(name).data(ctx).asnumpy() - expected).max() <= 1e-5 * size


@pytest.mark.parametrize("cls", [SGD, NAG])
@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=2)
@given(k=st.integers(1, 3), rates=RATES)
@example(k=2, rates=[0.0, 0.1, 0.2, 0.0, 0.05, 1e-15, 0.05])
def test_updates_with_any_rates_follow_the_definition(trainer, cls, k, rates):
    run = Run(k, TRAINERS[trainer], cls)
    for rate in rates:
        run.step(rate)
    run.check()


@pytest.mark.parametrize("momentum, options", [(0.9, {}), (0.0, {}), (0.9, {"clip_gradient": 0.3})], ids=str)
def test_a_plain_sgd_has_the_bits_of_mxnets(momentum, options):
    settings = {"learning_rate": 0.1, "momentum": momentum, "wd": WD, **options}
    results = []
    for make in (
        lambda params, _: BucketedTrainer(params, "sgd", dict(settings), bucket_bytes=50),
        lambda params, _: BucketedTrainer(params, mx.optimizer.SGD(**settings), bucket_bytes=50),
        lambda params, _: gluon.Trainer(params, "sgd", dict(settings), kvstore=None),
        lambda params, _: BucketedTrainer(params, SGD(**settings), bucket_bytes=50),
    ):
        run = Run(1, make, SGD)
        for rate in (0.1, 0.2, 0.05, 0.3):
            run.step(rate)
        results.append([param.list_data()[0].asnumpy() for param in run.params.values()])
    first, second, reference, corrected = results
    assert arrays_equal(first + second, reference * 2)
    assert arrays_equal(corrected, reference) == (momentum == 0)


@pytest.mark.parametrize("cls", [SGD, NAG])
@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_a_skipped_step_changes_no_momentum(cls, store):
    scale = LossScale(1.0)
    run = Run(2, bucketed_trainer_factory(store, loss_scale=scale), cls)
    run.step(0.1)
    random, run.random = run.random, SimpleNamespace(standard_normal=lambda shape: np.full(shape, np.inf))
    run.step(0.3, counts=False)
    run.random, scale.value = random, 1.0  # it was halved
    run.step(0.2)
    run.step(0.05)
    assert scale.skipped == 1
    run.check()


@pytest.mark.parametrize("cls", [SGD, NAG])
@pytest.mark.parametrize("trainer", ["gluon, every device updates", "buckets", "one bucket", "shards of buckets"])
@settings(max_examples=1)
@given(
    k=st.integers(1, 3), steps=st.lists(st.tuples(SOME_RATES, st.sets(st.sampled_from("abc"), min_size=1)), max_size=6)
)
@example(k=2, steps=[(0.3, {"a"}), (0.1, {"b", "c"}), (0.0, {"a", "c"}), (0.2, {"a", "b", "c"})])
def test_momentum_of_an_ignored_parameter_keeps_the_rate_of_its_last_update(trainer, cls, k, steps):
    run = Run(k, TRAINERS[trainer], cls)
    for rate, used in [(0.1, set(SHAPES)), *steps]:
        run.step(rate, used=sorted(used))
    run.check()


def test_momentum_of_an_ignored_device_keeps_the_rate_of_its_last_update():
    # as gluon.Trainer with ignore_stale_grad
    optimizer = SGD(learning_rate=0.1, momentum=0.9)
    updaters = [mx.optimizer.get_updater(optimizer) for _ in range(2)]
    weights = [nd.ones((3,), ctx=ctx) for ctx in contexts(2)]
    steps = [[], []]
    for number, (rate, devices) in enumerate([(0.1, (0, 1)), (0.3, (0,)), (0.2, (0, 1)), (0.05, (1,)), (0.1, (0, 1))]):
        optimizer.set_learning_rate(rate)
        for device in devices:
            updaters[device](0, nd.full((3,), number + 1.0, ctx=contexts(2)[device]), weights[device])
            steps[device].append((np.full((3,), number + 1.0), rate))
    for device in range(2):
        *_, expected = references.sgd(np.ones((3,)), steps[device], momentum=0.9)
        assert weights[device].asnumpy() == pytest.approx(expected, rel=1e-6)
