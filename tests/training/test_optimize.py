"""Weight decay without biases, compressed gradients, clipping, and the options that a run shows."""

import dataclasses
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts, device, device_spec, runs_on_gpus
from support.drawn_runs import load_few_digits
from support.kvstore_runs import make_small_net
from support.quick_runs import run_quickly
from support.reference import arrays_equal, parameter_arrays, relative_distance, train_on_one_device

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.config import TrainConfig
from gluonlab.data.loading.augmentation import to_float
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.errors import GluonlabWarning
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.kvstores.gradient_compression import enable_compression
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.training.build_network import disable_bias_and_norm_decay, make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import ConsoleReporter

# --- no decay for biases


def normalizing_net(ctxs):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(5), nn.LayerNorm(), nn.PReLU(), nn.Dense(3, use_bias=False))
    net.initialize(mx.init.Uniform(1), ctx=ctxs)
    net(nd.zeros((1, 2, 6, 6), ctx=ctxs[0]))
    for param in net.collect_params().values():
        param.set_data(nd.random.uniform(1, 2, shape=param.shape))
    return net


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_without_gradients_only_weights_decay(store):
    """With gradients of zero a step of SGD is w - lr wd w."""
    ctxs = contexts(2)
    net = normalizing_net(ctxs)
    before = {name: param.data(ctxs[0]).asnumpy() for name, param in net.collect_params().items()}
    disable_bias_and_norm_decay(net)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "wd": 0.1}, make_kvstore(store))
    trainer.apply(1)
    for name, param in net.collect_params().items():
        expected = before[name] * (0.95 if name.endswith(("weight", "alpha")) else 1)
        for ctx in ctxs:
            assert np.allclose(param.data(ctx).asnumpy(), expected, rtol=1e-6), name


def test_a_run_without_bias_decay_trains_as_gluon_with_multipliers(tmp_path):
    settings = dict(optimizer="sgd", lr=0.1, wd=0.05, global_batch_size=40, batch_size=None, dataset=load_few_digits())
    run, decayed = (run_quickly(tmp_path, str(off), no_bias_decay=off, **settings) for off in (True, False))
    plan = make_plan(TrainConfig(devices="cpu", model="mlp", optimizer="sgd", global_batch_size=40), load_few_digits())
    net = make_net(plan)
    for param in net.collect_params().values():
        param.wd_mult = 0.0 if "bias" in param.name else 1.0
    loader = Loader(plan.dataset.train, plan.ctxs, 40, seed=0)
    batches = [(images.asnumpy(), labels.asnumpy()) for (images,), (labels,) in loader]
    expected = train_on_one_device(net, batches, "sgd", learning_rate=0.1, wd=0.05)
    assert relative_distance(parameter_arrays(run.net), expected) <= 1e-5
    assert relative_distance(parameter_arrays(decayed.net), expected) > 1e-5


# --- compressed gradients


@pytest.mark.parametrize("bucket_bytes", [0, 100, 2**20])
@pytest.mark.parametrize("k", [2, 3])
def test_compressed_gradients_are_thresholds_and_the_rest_is_sent_later(k, bucket_bytes):
    """With random gradients, each update is minus the sum of what the devices sent."""
    ctxs, threshold, random = contexts(k), np.float32(0.25), np.random.RandomState(0)
    net = make_small_net(ctxs)
    kvstore = enable_compression(make_kvstore("device"), "2bit:0.25", k, SINGLE_PROCESS)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore, bucket_bytes=bucket_bytes)
    expected = [array.astype("float64") for array in parameter_arrays(net)]
    residuals = [[np.zeros(array.shape, "float32") for array in expected] for _ in ctxs]
    for _ in range(6):
        for ctx, residual in zip(ctxs, residuals):
            for index, param in enumerate(net.collect_params().values()):
                grad = random.normal(0, 0.2, param.shape).astype("float32")
                param.grad(ctx)[:] = nd.array(grad, ctx=ctx)
                residual[index] += grad
                sent = np.sign(residual[index]) * threshold * (abs(residual[index]) >= threshold)
                residual[index] -= sent
                expected[index] -= sent
        trainer.apply(1)
        for ctx in ctxs:
            assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-6


def test_a_run_with_compressed_gradients_learns_and_keeps_its_replicas_alike(tmp_path):
    settings = {"devices": device_spec(3), "batch_size": 20, "optimizer": "sgd", "lr": 0.1}
    run = run_quickly(tmp_path, epochs=5, compress="2bit:1", **settings)
    assert run.val_accuracy > 0.8
    assert arrays_equal(parameter_arrays(run.net, contexts(3)[0]), parameter_arrays(run.net, contexts(3)[2]))


@pytest.mark.parametrize("name", [name for name, kind in KVSTORES.items() if not kind.gpus_only])
def test_a_kvstore_supports_compression_if_mxnet_allows_it(name):
    try:
        make_kvstore(name).set_gradient_compression({"type": "2bit", "threshold": 0.5})
        is_allowed = True
    except Exception:  # MXNet raises nothing more specific
        is_allowed = False
    assert KVSTORES[name].supports_compression == is_allowed


# --- clipping


@pytest.mark.parametrize("kvstore", ["device", "sharded-optimizer"])
def test_a_run_clips_the_gradients_of_its_batches(tmp_path, kvstore):
    """One step of SGD with rate 1 moves the parameters by the clipped gradient."""
    settings = dict(batch_size=None, global_batch_size=150, optimizer="sgd", lr=1.0, kvstore=kvstore)
    start = parameter_arrays(make_net(make_plan(TrainConfig(devices=device_spec(2), model="mlp"))))

    def measure_move(limit):
        result = run_quickly(tmp_path, str(limit), clip_norm=limit, dataset=load_few_digits(), **settings)
        return np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(parameter_arrays(result.net), start)))

    assert measure_move(None) > 0.2
    assert measure_move(0.1) == pytest.approx(0.1, rel=1e-4)


# --- what a run says


def test_a_run_prints_and_records_how_it_optimizes(tmp_path, capsys):
    run = run_quickly(
        tmp_path, reporter=ConsoleReporter(), epochs=2, batch_size=150, lr_schedule="cosine", warmup_epochs=1,
        clip_norm=5, label_smoothing=0.1, no_bias_decay=True, wd=1e-4, compress="2bit:0.1",
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert "schedule   cosine to 0, warm-up in 5 steps" in lines
    assert "options    clip norm 5, label smoothing 0.1, no bias decay, compress 2bit:0.1" in lines
    assert max(map(len, lines)) <= 80
    content = json.loads((run.run_dir / "config.json").read_text())
    assert {"lr_schedule": "cosine", "warmup_steps": 5, "final_lr": 0.0}.items() <= content["settings"].items()
    assert TrainConfig(**content["config"]) == run.plan.config
    assert content["settings"]["bucket_bytes"] == (25 if runs_on_gpus() else 4) * 2**20


def test_a_run_shows_every_option_that_changes_its_training_in_80_columns():
    options = dict(
        clip_norm=5, label_smoothing=0.1, crop_padding=4, flip=True, mixup=0.2, sync_bn=True,
        no_bias_decay=True, wd=0.1, compress="2bit:0.1",
    )  # fmt: skip
    plan = make_plan(TrainConfig(devices=device_spec(2), **options))
    titles, texts = zip(*dataclasses.replace(plan, random_resized_crop=True).option_lines())
    assert titles == ("options", *[""] * (len(texts) - 1))
    assert max(map(len, texts)) <= 80 - 11
    assert " ".join(texts) == (
        "clip norm 5, label smoothing 0.1, random resized crop, crop padding 4, flip, mixup 0.2, sync-bn, "
        "no bias decay, compress 2bit:0.1"
    )
    assert list(make_plan(TrainConfig(devices=device_spec(2))).option_lines()) == []


def test_one_device_neither_shares_statistics_nor_compresses():
    with pytest.warns(GluonlabWarning, match="--compress 2bit:0.5: a single device does not send gradients"):
        plan = make_plan(TrainConfig(devices=device_spec(1), sync_bn=True, compress="2bit"))
    assert (plan.sync_bn, plan.compress, list(plan.option_lines())) == (False, None, [])


def test_smoothing_changes_the_training_loss_and_not_the_validation_loss(tmp_path):
    """With a learning rate of nearly zero the network stays the same, so only the loss differs."""
    settings = dict(lr=1e-30, optimizer="sgd", dataset=load_few_digits(), batch_size=20)
    plain, smooth = (run_quickly(tmp_path, str(share), label_smoothing=share, **settings) for share in (0.0, 0.5))
    assert smooth.history[0].val_loss == plain.history[0].val_loss
    split = plain.plan.dataset.train
    images, labels = split.batch(np.arange(len(split)))
    scores = plain.net(to_float(nd, nd.array(images, ctx=device(), dtype="uint8")))
    logs = nd.log_softmax(scores).asnumpy().astype("float64")
    expected = -(0.5 * logs[np.arange(len(labels)), labels] + 0.5 * logs.mean(axis=1)).mean()
    assert smooth.history[0].loss == pytest.approx(expected, rel=1e-5)
