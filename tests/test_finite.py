"""Parameters that are not finite are found before they are saved, whatever the loss."""

import itertools
import json
import math

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device, device_spec
from support.examples import examples

from gluonlab.config import TrainConfig
from gluonlab.divergence_checks import LARGEST_LOSS, is_healthy, nonfinite_parameters
from gluonlab.errors import DivergedError, GluonlabWarning, ModelError, RunError
from gluonlab.models import MODELS, ModelKind
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.loss_meter import AsyncLossMeter
from gluonlab.training.reporter import Reporter


def make_net_hiding_nan(classes=10):
    """A unit whose NaN bias makes 0 of its ReLU on the CPU: scores and losses look healthy."""
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(4, activation="relu"), nn.Dense(classes))
    return net


@pytest.fixture
def relu_network(monkeypatch):
    monkeypatch.setitem(MODELS, "hidden", ModelKind(lambda classes: make_net_hiding_nan(classes), "for this test"))


@examples(20, 40)
@given(
    st.lists(st.sampled_from(["float32", "float16", "float64"]), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(1, 2),
)
def test_broken_parameters_are_named_and_no_others(types, bad, value, k):
    """Also frozen ones, of every type, and the last element of an array."""
    block = nn.Block(prefix="")
    for i, dtype in enumerate(types):
        grad_req = "null" if i % 2 else "write"
        param = block.params.get(f"p{i}", shape=(i + 1, 2), dtype=dtype, init="ones", grad_req=grad_req)
        param.initialize(ctx=contexts(k))
        if i in bad:
            array = np.ones((i + 1, 2), dtype)
            array[-1, -1] = value
            param.set_data(nd.array(array, dtype=dtype))
    assert nonfinite_parameters(block) == [f"p{i}" for i in range(len(types)) if i in bad]


def test_more_parameters_than_the_operator_takes_are_all_checked():
    block = nn.Block(prefix="")
    for i in range(450):
        block.params.get(f"p{i}", shape=(1,), init="ones").initialize()
    assert nonfinite_parameters(block) == []
    for i in (0, 199, 200, 449):
        block.params[f"p{i}"].set_data(nd.array([math.nan]))
        assert nonfinite_parameters(block) == [f"p{i}"]
        block.params[f"p{i}"].set_data(nd.ones((1,)))


@pytest.mark.cpu_only("the CPU's ReLU makes 0 of NaN")
@pytest.mark.parametrize("devices", ["cpu*1", "cpu*2"])
def test_a_run_notices_them_after_the_epoch_and_saves_nothing(devices, tmp_path, relu_network):
    """The first epoch stays as it was; the message names the parameter and the step."""
    out = tmp_path / "run"
    settings = dict(devices=devices, model="hidden", epochs=3, global_batch_size=300, lr=0.01, bucket_bytes=0)
    plain = TrainConfig(out=str(out), optimizer="sgd", **settings)
    saved = []

    def make_poisoned_strategy(*parts):
        strategy, steps = data_parallel(*parts), itertools.count(1)
        healthy = strategy.step

        def step(batch):
            losses, number = healthy(batch), next(steps)
            if number == 7:  # of 5 in each epoch
                for data in strategy.net[1].bias.list_data():
                    data[0] = math.nan
            if number == 6:
                saved.append((out / "parameters.params").read_bytes())
            return losses

        strategy.step = step
        return strategy

    message = r"the model.s parameter dense\d+_bias is no longer finite after step \d+: use a smaller"
    with pytest.raises(DivergedError, match=message) as error:
        train(plain, strategy=make_poisoned_strategy, reporter=Reporter())
    assert error.value.exit_status == 1
    assert (out / "parameters.params").read_bytes() == saved[0]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1]
    assert [line["event"] for line in lines if line["kind"] == "event"] == ["diverged"]
    assert all(math.isfinite(line["loss"]) for line in lines if line["kind"] == "step")


def test_statistics_that_are_young_are_no_divergence(tmp_path, monkeypatch):
    """After a step BatchNorm holds 9/10 of its initial variance 1, a factor of 3 per layer."""

    def make_deep_net(classes):
        net = nn.HybridSequential()
        net.add(nn.Flatten())
        for _ in range(12):
            net.add(nn.Dense(8, use_bias=False, weight_initializer=mx.init.Normal(10)), nn.BatchNorm())
        net.add(nn.Dense(classes, weight_initializer=mx.init.Normal(100)))
        return net

    monkeypatch.setitem(MODELS, "deep", ModelKind(make_deep_net, "for this test"))
    common = dict(devices=device_spec(1), model="deep", global_batch_size=1437, optimizer="sgd", lr=1e-9)
    with pytest.warns(
        GluonlabWarning, match=r"the validation loss is .*e\+\d+ after step 1: the running statistics of BatchNorm"
    ):
        early = train(TrainConfig(epochs=1, out=str(tmp_path / "early"), **common), reporter=Reporter())
    assert LARGEST_LOSS < early.history[0].val_loss < math.inf
    assert evaluate_run(str(tmp_path / "early"), devices=device_spec(1)).score.accuracy == early.val_accuracy


def test_a_file_with_a_hidden_nan_is_refused_to_begin_with_and_to_evaluate(tmp_path, relu_network):
    settings = dict(devices=device_spec(1), model="hidden", epochs=1, global_batch_size=600)
    train(TrainConfig(out=str(tmp_path / "run"), **settings), reporter=Reporter())
    file = tmp_path / "run" / "parameters.params"
    arrays = nd.load(str(file))
    arrays["1.bias"][3] = math.nan
    nd.save(str(file), arrays)
    holds = r"parameters\.params contains NaN or infinity in \w+_bias"
    with pytest.raises(
        RunError, match=rf"{holds}: train again with a smaller --lr, because this training run diverged$"
    ):
        evaluate_run(str(tmp_path / "run"), devices=device_spec(1))
    with pytest.raises(ModelError, match=r"--pretrained .* contains NaN or infinity in \w+_bias: choose a file"):
        train(TrainConfig(out=str(tmp_path / "next"), pretrained=str(file), **settings), reporter=Reporter())
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("may_overflow", [False, True])
@pytest.mark.parametrize("loss", [5e17, LARGEST_LOSS, 1e38])
def test_an_absurd_loss_is_diverged_long_before_it_is_nan(loss, may_overflow):
    log = AsyncLossMeter(contexts(1), may_overflow)
    log.append([nd.array([2.0], ctx=device())], 1)
    log.append([nd.array([loss * 3], ctx=device())], 3)
    message = rf"^the loss became {loss:.3g} at step 2: use a smaller".replace("+", r"\+")
    with pytest.raises(DivergedError, match=message):
        log.flush()
    assert [step.step for step in log.steps_before_divergence] == [1]


@pytest.mark.parametrize("scale", [1.0, 255.0, 1e4])
def test_the_worst_beginnings_of_trainings_are_healthy(scale):
    """Unscaled bytes without normalization give losses of thousands, from which runs recover."""
    mx.random.seed(0)
    net = nn.HybridSequential()
    for _ in range(4):
        net.add(nn.Dense(256, activation="relu"))
    net.add(nn.Dense(1000))
    net.initialize(mx.init.MSRAPrelu(slope=0))
    images = nd.array(np.random.RandomState(0).uniform(0, scale, (8, 784)))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), nd.arange(8)).mean().asscalar()
    assert loss > math.log(1000) / 2
    assert is_healthy(float(loss))
    assert not any(map(is_healthy, (math.nan, math.inf, -math.inf, 5e17)))
