"""Learning rates: closed forms, and the rate of every step of a run."""

import functools
import math

import mxnet as mx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet import autograd, gluon
from support.covering import pairwise
from support.devices import contexts, device_spec
from support.examples import examples
from support.kvstore_runs import BATCHES, OPTIMIZERS, make_small_net
from support.reference import arrays_equal, cpu_contexts, parameter_arrays, relative_distance, train_on_devices
from support.run_files import read_metrics

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS as OFFERED
from gluonlab.optimizers.optimizer_registry import make_optimizer
from gluonlab.training.build_network import make_net
from gluonlab.training.learning_rate_schedule import LR_SCHEDULES, LearningRates, make_learning_rates
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter

BASE, FINAL = 0.4, 0.02


def rates(schedule, steps=100, warmup_steps=0, milestones=(), **more):
    return LearningRates(BASE, steps, schedule, warmup_steps, FINAL, 0.3, milestones, **more)


# --- closed forms


@pytest.mark.parametrize("warmup_steps", [0, 1, 7, 99])
@pytest.mark.parametrize("schedule", LR_SCHEDULES)
def test_the_rate_at_the_boundaries(schedule, warmup_steps):
    rate, rest = rates(schedule, warmup_steps=warmup_steps, milestones=(99,)), 100 - warmup_steps
    last = {
        "constant": BASE,
        "step": BASE * 0.3,
        "cosine": FINAL + (BASE - FINAL) * (1 + math.cos(math.pi * (rest - 1) / rest)) / 2,
        "linear": FINAL + (BASE - FINAL) / rest,
    }
    after_the_end = FINAL if schedule in ("cosine", "linear") else last[schedule]
    expected = {1: BASE / max(1, warmup_steps), warmup_steps + 1: BASE if rest > 1 else last[schedule]}
    expected.update({max(1, warmup_steps): BASE, 100: last[schedule], 101: after_the_end})
    assert {step: rate(step) for step in expected} == pytest.approx(expected)


MXNETS = {
    "cosine": (lambda w: mx.lr_scheduler.CosineScheduler(60, base_lr=BASE, final_lr=FINAL, warmup_steps=w), 1),
    "linear": (lambda w: mx.lr_scheduler.PolyScheduler(60, base_lr=BASE, pwr=1, final_lr=FINAL, warmup_steps=w), 1),
    "step": (lambda w: mx.lr_scheduler.MultiFactorScheduler([20, 45], 0.3, base_lr=BASE, warmup_steps=w), 0),
}


@pytest.mark.parametrize("warmup_steps", [0, 1, 12])
@pytest.mark.parametrize("schedule", MXNETS)
def test_the_rates_are_those_of_mxnets_own_schedulers(schedule, warmup_steps):
    make, ahead = MXNETS[schedule]  # MXNet's first update of cosine and linear uses the second rate
    own, theirs = rates(schedule, 60, warmup_steps, (20, 45)), make(warmup_steps)
    expected = [theirs(step if step <= warmup_steps else step - ahead) for step in range(1, 61)]
    assert [own(step) for step in range(1, 61)] == pytest.approx(expected, rel=1e-12)


RATES = st.builds(
    LearningRates,
    base_lr=st.floats(0.01, 10),
    steps=st.integers(1, 60),
    schedule=st.sampled_from(sorted(LR_SCHEDULES)),
    warmup_steps=st.integers(0, 60),
    final_lr=st.floats(0, 0.01),
    decay=st.floats(0.01, 0.99),
    milestones=st.lists(st.integers(1, 60), max_size=3).map(sorted).map(tuple),
).filter(lambda rates: rates.warmup_steps <= min(rates.steps, *rates.milestones, 60))


@examples(40)
@given(RATES)
@example(LearningRates(0.224, 1, "cosine", final_lr=0.007154205656813448))  # the sum is rounded up
def test_a_rate_grows_in_the_warm_up_and_falls_after_it(rates):
    result, again = ([rates(step) for step in range(1, rates.steps + 1)] for _ in range(2))
    up, down = result[: rates.warmup_steps], result[rates.warmup_steps :]
    assert all(a < b for a, b in zip(up, up[1:])) and all(a >= b for a, b in zip(down, down[1:]))
    assert all(0 < rate <= rates.base_lr for rate in result) and result == again


def test_a_rate_that_float32_does_not_know_is_0():
    net = make_small_net(contexts(1))
    before = parameter_arrays(net)
    tiny = LearningRates(1.0, 5, "step", decay=1e-20, milestones=(1, 2, 3))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "lr_scheduler": tiny})
    for _ in range(2):  # no gradient yet: nothing moves
        trainer.apply(1)
    train_on_devices(net, trainer, contexts(1), BATCHES[:1])
    assert tiny(3) == 0
    assert arrays_equal(parameter_arrays(net), before)


# --- from the settings of a run


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr_decay_epochs": "3,5"}, LearningRates(0.4, 80, "step", milestones=(30, 50))),
        ({"lr_decay_epochs": [3], "lr_decay": 0.5}, LearningRates(0.4, 80, "step", decay=0.5, milestones=(30,))),
        ({}, LearningRates(0.4, 80, "step", milestones=(40, 60))),
        ({"warmup_epochs": 2}, LearningRates(0.4, 80, "step", warmup_steps=20, milestones=(50, 65))),
        ({"lr_schedule": "linear", "warmup_epochs": 0.25}, LearningRates(0.4, 80, "linear", warmup_steps=2)),
    ],
    ids=str,
)
def test_epochs_become_steps(settings, expected):
    config = TrainConfig(**{"lr_schedule": "step", **settings})
    assert make_learning_rates(config, 0.4, epochs=8, steps_per_epoch=10) == expected


def test_a_run_of_a_single_step_is_made_with_the_full_rate():
    for schedule in LR_SCHEDULES:
        assert make_learning_rates(TrainConfig(lr_schedule=schedule), 0.4, epochs=1, steps_per_epoch=1)(1) == 0.4


def test_scaling_the_rate_scales_the_whole_schedule():
    config = TrainConfig(devices=device_spec(1), lr_schedule="linear", lr=0.4, final_lr=0.1, batch_size=100)
    one = make_plan(config).rates
    three = make_plan(config.replace(devices=device_spec(3), scale_lr=True)).rates
    unscaled = make_plan(config.replace(devices=device_spec(3), batch_size=None, global_batch_size=300)).rates
    steps = range(1, three.steps + 1)
    assert [three(step) for step in steps] == pytest.approx([3 * unscaled(step) for step in steps])
    assert three(1) == pytest.approx(3 * one(1))


# --- what training does with them


@functools.lru_cache(maxsize=None)
def parameters_with_rates_by_hand(optimizer, rates):
    net = make_small_net(cpu_contexts(1))
    params = {**OPTIMIZERS[optimizer], "learning_rate": rates[1]}
    trainer = gluon.Trainer(net.collect_params(), optimizer, params, kvstore=None)
    for rate, batch in zip(rates, BATCHES):
        trainer.set_learning_rate(rate)
        train_on_devices(net, trainer, cpu_contexts(1), [batch])
    return parameter_arrays(net)


@pairwise(k=[1, 3], store=["device", "ring", "sharded-optimizer"], optimizer=list(OPTIMIZERS))
def test_every_step_is_made_with_its_rate(k, store, optimizer):
    """The reference gets each rate by hand, whatever its count of updates."""
    schedule = LearningRates(0.3, len(BATCHES), "cosine", warmup_steps=2)
    by_hand = (0.15, 0.3, 0.3, 0.3 * (1 + math.cos(math.pi / 3)) / 2, 0.3 * (1 + math.cos(2 * math.pi / 3)) / 2)
    expected = parameters_with_rates_by_hand(optimizer, by_hand)
    params = {**OPTIMIZERS[optimizer], "learning_rate": 0.3}
    net = make_small_net(contexts(k))
    bucketed = BucketedTrainer(
        net.collect_params(), optimizer, {**params, "lr_scheduler": schedule}, make_kvstore(store), bucket_bytes=100
    )
    train_on_devices(net, bucketed, contexts(k), BATCHES)
    assert len(bucketed.buckets) > 1  # an update counts once, however many buckets it takes
    for ctx in contexts(k):
        assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-5


@pytest.mark.parametrize("optimizer", OFFERED)
def test_every_optimizer_follows_a_schedule_bit_by_bit(optimizer):
    schedule = LearningRates(0.1, len(BATCHES), "linear", warmup_steps=2)
    expected, net = make_small_net(contexts(1)), make_small_net(contexts(1))
    trainer = gluon.Trainer(expected.collect_params(), make_optimizer(optimizer, {"learning_rate": 0.1}), kvstore=None)
    for step, batch in enumerate(BATCHES, start=1):
        trainer.set_learning_rate(schedule(step))
        train_on_devices(expected, trainer, contexts(1), [batch])
    scheduled = make_optimizer(optimizer, {"learning_rate": 0.1, "lr_scheduler": schedule})
    train_on_devices(net, BucketedTrainer(net.collect_params(), scheduled), contexts(1), BATCHES)
    assert arrays_equal(parameter_arrays(net), parameter_arrays(expected))


def test_gluons_trainer_with_the_recorded_rates_ends_as_the_run(tmp_path):
    config = TrainConfig(
        devices=device_spec(1), model="mlp", epochs=2, batch_size=300, optimizer="sgd", lr=0.3,
        momentum=0.9, lr_schedule="step", lr_decay=0.5, lr_decay_epochs="1", warmup_epochs=0.6,
        momentum_rule="mxnet", out=str(tmp_path / "run"),
    )  # fmt: skip
    run = train(config, reporter=Reporter())
    lines = read_metrics(run.run_dir)
    recorded = [line["lr"] for line in lines if line["kind"] == "step"]
    assert recorded == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.15, 0.15])
    assert [line["lr"] for line in lines if line["kind"] == "epoch"] == pytest.approx([0.3, 0.15])
    net = make_net(make_plan(config))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=None)
    loader = Loader(run.plan.dataset.train, run.plan.ctxs, 300, config.seed)
    for rate, ((images,), (labels,)) in zip(recorded, [*loader, *loader]):
        trainer.set_learning_rate(rate)
        with autograd.record():
            total = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels).sum()
        total.backward()
        trainer.step(len(images))
    assert relative_distance(parameter_arrays(run.net), parameter_arrays(net)) <= 1e-4
