"""All parameters of a step have the same learning rate, also if some steps leave some of them out.

The rate is that of the schedule for the largest number of updates of any parameter.
"""

import math

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from support import optimizer_references as references
from support.devices import contexts
from support.examples import examples

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import gather_states, restore_states
from gluonlab.optimizers import NAG, SGD

BASE, SHAPES, STORES = (0.5, [(3,), (2, 2), (5,), (1, 4)], ("device", "local", "ring", "sharded-optimizer"))


def factor(n, every=2):
    return BASE * 0.5 ** (math.ceil(n / every) - 1)


def cosine(n, warm=2, most=6):
    if n < warm:
        return 0.01 + (BASE - 0.01) * n / warm
    return 0.02 + (BASE - 0.02) * (1 + math.cos(math.pi * min(n - warm, most - warm) / (most - warm))) / 2


def polynomial(n, most=5):
    return 0.02 + (BASE - 0.02) * (1 - min(n, most) / most) ** 2


def steps_down(n):
    return BASE * 0.5 ** ((n > 1) + (n > 4))


SCHEDULES = {
    factor: lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=BASE),
    steps_down: lambda: mx.lr_scheduler.MultiFactorScheduler([1, 4], 0.5, base_lr=BASE),
    cosine: lambda: mx.lr_scheduler.CosineScheduler(6, BASE, 0.02, warmup_steps=2, warmup_begin_lr=0.01),
    polynomial: lambda: mx.lr_scheduler.PolyScheduler(5, base_lr=BASE, final_lr=0.02, pwr=2),
}


def adam(start, steps, momentum, wd):
    """Yield the weights of MXNet's Adam, which corrects for the updates of this parameter."""
    weight, mean, square = start, np.zeros_like(start), np.zeros_like(start)
    for t, (grad, rate) in enumerate(steps, 1):
        grad = grad + wd * weight
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
        weight = weight - rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * mean / (np.sqrt(square) + 1e-8)
        yield weight


KINDS = {
    mx.optimizer.SGD: references.sgd_mxnet_momentum,
    SGD: references.sgd,
    NAG: references.nag,
    mx.optimizer.Adam: adam,
}


@st.composite
def freshness(draw):
    """Draw [step][device]: the parameters with a fresh gradient there, and their number."""
    params, devices = draw(st.integers(1, len(SHAPES))), draw(st.integers(1, 3))
    some = st.one_of(st.just(set(range(params))), st.sets(st.integers(0, params - 1)))
    return draw(st.lists(st.tuples(*[some] * devices), min_size=1, max_size=8)), params


@examples(5, 300)
@given(
    run=freshness(),
    kind=st.sampled_from(list(KINDS)),
    schedule=st.sampled_from(list(SCHEDULES)),
    stores=st.tuples(st.sampled_from(STORES), st.sampled_from(STORES)),
    bucket_bytes=st.sampled_from([0, 100, 4096]),
    halves=st.booleans(),
    resumed=st.integers(1, 8),
)
def test_all_parameters_of_a_step_have_its_rate(run, kind, schedule, stores, bucket_bytes, halves, resumed):
    # After ``resumed`` steps a second trainer, with another store, continues.
    steps, count = run
    ctxs, random = contexts(len(steps[0])), np.random.RandomState(0)
    options = {"wd": 0.01, **({} if kind is mx.optimizer.Adam else {"momentum": 0.9})}
    params = gluon.ParameterDict()
    starts = [random.standard_normal(shape).astype("float32") for shape in SHAPES[:count]]
    for number, start in enumerate(starts):
        param = params.get(f"p{number}", shape=start.shape)
        param.initialize(ctx=ctxs)
        param.set_data(nd.array(start))

    def make_trainer(store):
        optimizer = kind(lr_scheduler=SCHEDULES[schedule](), learning_rate=BASE, **options)
        return BucketedTrainer(params, optimizer, kvstore=store, bucket_bytes=bucket_bytes)

    store, trainer = stores[0], make_trainer(stores[0])
    seen, most = [[] for _ in starts], 0
    for step, fresh in enumerate(steps):
        if step == resumed:
            states = gather_states(trainer)
            store, trainer = stores[1], make_trainer(stores[1])
            restore_states(trainer, states)
        grads = [np.zeros_like(start, dtype="float64") for start in starts]
        with autograd.record():
            losses = []
            for used, ctx in zip(fresh, ctxs):
                for number in used:
                    grad = random.standard_normal(SHAPES[number]).astype("float32")
                    grads[number] += grad
                    losses.append((params.get(f"p{number}").data(ctx) * nd.array(grad, ctx=ctx)).sum())
        if losses:
            autograd.backward(losses)
        if halves and store != "sharded-optimizer":
            trainer.allreduce_grads()
            trainer.update(1, ignore_stale_grad=True)
        else:
            trainer.step(1, ignore_stale_grad=True)
        updated = sorted(set().union(*fresh))
        most = max([most, *(len(seen[number]) + 1 for number in updated)])
        for number in updated:
            seen[number].append((grads[number], schedule(most)))
    for number, start in enumerate(starts):
        *_, expected = start, *KINDS[kind](start.astype("float64"), seen[number], **{"momentum": 0.9, **options})
        for ctx in ctxs:
            distance = np.abs(params.get(f"p{number}").data(ctx).asnumpy() - expected).max()
            assert distance <= 1e-4 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("trainer", [gluon.Trainer, BucketedTrainer])
def test_gluons_trainer_uses_an_earlier_rate_for_parameters_that_join_late(trainer):
    params = gluon.ParameterDict()
    for name in ("first", "second"):
        params.get(name, shape=(1,), init="zeros").initialize()
    optimizer = mx.optimizer.NAG(learning_rate=1.0, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=1.0))
    instance = trainer(params, optimizer, bucket_bytes=0) if trainer is BucketedTrainer else trainer(params, optimizer)
    for used in (["second"], ["second"], ["first", "second"]):
        with autograd.record():
            loss = sum(params.get(name).data() for name in used)
        loss.backward()
        instance.step(1, ignore_stale_grad=True)
    expected = {gluon.Trainer: 0.5, BucketedTrainer: 0.25}[trainer]
    assert [-params.get(name).data().asscalar() for name in ("first", "second")] == [expected, 1 + 0.5 + 0.25]


@pytest.mark.parametrize("store", ["device", "ring"])
def test_the_schedule_is_asked_once_in_a_step(store):
    calls = []
    params = gluon.ParameterDict()
    for number, shape in enumerate(SHAPES):
        params.get(f"p{number}", shape=shape)
    params.initialize(ctx=contexts(2))
    trainer = BucketedTrainer(
        params, "sgd", {"lr_scheduler": lambda step: calls.append(step) or BASE}, kvstore=store, bucket_bytes=0
    )
    assert len(trainer.buckets) == len(SHAPES)
    calls.clear()
    for _ in range(3):
        trainer.apply(1)
    assert calls == [1, 2, 3]
