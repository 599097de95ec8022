"""A user strategy, a network whose halves lie on two devices, in the loop of all runs."""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.devices import device_spec
from support.reference import parameter_arrays, relative_distance

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import collect_states, set_states
from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, DivergedError
from gluonlab.models import MODELS, ModelKind
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.strategy import ScoredImages, StrategyState, UnshardedParameters
from gluonlab.parallel.training_loss import make_loss
from gluonlab.report.report_page import make_page
from gluonlab.runs.run_reader import read_runs
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter


class TwoHalves(UnshardedParameters):
    """The first half of a network's layers lies on one device, the second on another."""

    devices_per_copy = 2
    has_running_statistics = True  # there may be BatchNorm layers, each with its one replica

    def __init__(self, make_net, loss, plan, group):
        first, second = plan.ctxs
        self.net, self.inputs, self.outputs = make_net([first]), [first], [second]
        layers = list(self.net)
        self.halves = {first: layers[: len(layers) // 2], second: layers[len(layers) // 2 :]}
        for layer in self.halves[second]:
            layer.collect_params().reset_ctx(second)
        self.trainers = [
            BucketedTrainer(params, plan.make_optimizer(), kvstore=None)
            for half in self.halves.values()
            if (params := {k: p for layer in half for k, p in layer.collect_params().items()})
        ]
        self.loss, self.true_loss, self.preprocess = loss, make_loss(), plan.preprocess

    def scores(self, images):
        x = self.preprocess(nd, images)
        for ctx, half in self.halves.items():
            x = x.as_in_context(ctx)
            for layer in half:
                x = layer(x)
        return x

    def step(self, batch):
        for _, queue in self.phases(batch):
            queue()
        return self.losses

    def phases(self, batch):
        yield "forward", partial(self.forward, batch)
        yield "backward", lambda: autograd.backward(self.losses)
        for trainer in self.trainers:
            yield "update", partial(trainer.step, batch.size)

    def forward(self, batch):
        with autograd.record():
            self.losses = [self.loss(self.scores(x), self.move_labels(y)).sum() for x, y in zip(*batch)]

    def move_labels(self, labels):
        return labels.as_in_context(self.outputs[0])

    def settings(self):
        return {}

    def lines(self):
        return iter(())

    def score(self, batch):
        for x, y in zip(*batch):
            scores, labels = self.scores(x), self.move_labels(y)
            yield ScoredImages(0, self.true_loss(scores, labels).sum(), scores, labels)

    def sync_running_statistics(self):
        """There is one replica."""

    def state(self):
        first, *others = map(collect_states, self.trainers)
        parameters = sum((states.parameters for states in others), first.parameters)
        return StrategyState(first._replace(parameters=parameters), {})

    def restore(self, state):
        for trainer in self.trainers:
            names = {param.name for param in trainer._params}
            own = tuple(each for each in state.optimizer.parameters if each.name in names)
            set_states(trainer, state.optimizer._replace(parameters=own), "this state")


LAYERS = {
    "convolution": lambda: nn.Conv2D(6, 3, padding=1, activation="tanh"),
    "norm": lambda: nn.BatchNorm(),
    "pooling": lambda: nn.AvgPool2D(2, 2, ceil_mode=True),
    "dense": lambda: nn.Dense(16, activation="tanh"),
}
IMAGES = ("convolution", "norm", "pooling")


def network(images, vectors):
    """A function that makes a network of such layers."""

    def make(classes):
        net = nn.HybridSequential()
        net.add(*(LAYERS[name]() for name in (*images, *vectors)), nn.Dense(classes))
        return net

    return make


def run(folder, devices, make, strategy=TwoHalves, **options):
    """A run of two epochs of the network ``make`` on the digits."""
    settings = dict(optimizer="sgd", lr=0.01, momentum=0.9, epochs=2, threads=1)
    config = TrainConfig(devices=devices, model="halves", out=str(folder), **{**settings, **options})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "halves", ModelKind(make, ""))
        return train(config, strategy, Reporter())


def assert_alike(halves, whole, tolerance=1e-5):
    assert relative_distance(parameter_arrays(halves.net), parameter_arrays(whole.net)) <= tolerance
    for one, other in zip(halves.history, whole.history):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.val_loss == pytest.approx(other.val_loss, rel=1e-5)
        assert one.val_accuracy == pytest.approx(other.val_accuracy, abs=1 / 360)


@pytest.mark.long
@settings(max_examples=8)
@given(
    images=st.lists(st.sampled_from(IMAGES), max_size=3),
    vectors=st.lists(st.just("dense"), max_size=2),
    size=st.integers(300, 1437),
    options=st.sampled_from([{}, {"mixup": 0.2}, {"lr_schedule": "cosine", "label_smoothing": 0.1}, {"flip": True}]),
)
def test_any_network_in_two_halves_trains_as_on_one_device(tmp_path_factory, images, vectors, size, options):
    make, folder = network(images, vectors), tmp_path_factory.mktemp("runs")
    options = {"global_batch_size": size, **options}
    halves = run(folder / "halves", device_spec(2), make, **options)
    whole = run(folder / "whole", device_spec(1), make, data_parallel, **options)
    assert_alike(halves, whole, 1e-4)  # some arrays are small beside what they are computed of


def test_a_custom_strategy_trains_as_on_one_device_evaluates_reports_and_exports(tmp_path):
    make, size = network(("convolution", "norm"), ("dense",)), {"global_batch_size": 500}
    halves = run(tmp_path / "run", device_spec(2), make, export=True, confusion=True, **size)
    whole = run(tmp_path / "whole", device_spec(1), make, data_parallel, **size)
    assert_alike(halves, whole, tolerance=5e-5)  # padded channels are added in another order
    placed = {tuple(param.list_ctx()) for param in halves.net.collect_params().values()}
    assert placed == {(ctx,) for ctx in halves.plan.ctxs}
    assert halves.confusion.trace() == pytest.approx(halves.val_accuracy * 360)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "halves", ModelKind(make, ""))
        again = evaluate_run(str(tmp_path / "run"), devices=device_spec(1))
    assert again.score.accuracy == halves.val_accuracy
    assert again.score.loss == pytest.approx(halves.history[-1].val_loss, rel=1e-5)
    [read] = read_runs([tmp_path / "run"])
    assert f"{halves.val_accuracy:.4f}" in make_page([read])
    exported = tmp_path / "run" / "export"
    net = mx.gluon.SymbolBlock.imports(
        str(exported / "model-symbol.json"), ["data"], str(exported / "model-0000.params")
    )
    images, labels = halves.plan.dataset.test.batch(np.arange(360))
    answers = net(nd.array(images) / 255).asnumpy().argmax(axis=1)
    assert (answers == labels).mean() == pytest.approx(halves.val_accuracy, abs=1 / 360)


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_broken_parameter_of_either_half_ends_the_run(tmp_path, where):
    class Breaking(TwoHalves):
        def sync_running_statistics(self):
            param = list(self.net.collect_params().values())[0 if where == "first" else -1]
            param.list_data()[0][:] = np.nan

    with pytest.raises(DivergedError, match="no longer finite after step 3"):
        run(tmp_path / "run", device_spec(2), network((), ("dense",)), Breaking, global_batch_size=500)


def test_a_strategy_without_memory_estimate_trains(tmp_path):
    with pytest.raises(
        ConfigError, match="--estimate-memory supports only built-in strategies, not your own strategy: remove"
    ):
        run(tmp_path / "run", device_spec(2), network((), ("dense",)), estimate_memory=True)
    assert not (tmp_path / "run").exists()
