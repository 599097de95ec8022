"""--drop-last trains only on whole batches, as the plain loop that skips the ragged one does."""

import json

import mxnet as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import device_spec
from support.drawn_runs import load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter, read_comparable_metrics, read_parameter_bytes
from support.process_group import run_in_threads
from support.reference import parameter_arrays, relative_distance, train_on_one_device

from gluonlab.config import TrainConfig
from gluonlab.data import Loader
from gluonlab.errors import ConfigError, DataError
from gluonlab.models import get_model
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import ConsoleReporter, Reporter

EPOCHS, LR = 2, 0.05
TRAIN = load_few_digits().train


def config(folder, batch, devices=2, **more):
    return TrainConfig(
        devices=device_spec(devices), threads=1, model="mlp", epochs=EPOCHS, lr=LR, optimizer="sgd",
        global_batch_size=batch, drop_last=True, out=str(folder), **more,
    )  # fmt: skip


def train_on_few_digits(config, reporter=None, **options):
    return train(config, reporter=reporter or Reporter(), dataset=load_few_digits(), **options)


@settings(max_examples=2)
@given(batch=st.integers(20, 150), processes=st.integers(1, 2), devices=st.integers(1, 2))
def test_it_trains_as_the_plain_loop_without_ragged_batches(tmp_path_factory, batch, processes, devices):
    folder = tmp_path_factory.mktemp("runs")
    plan = config(folder / "run", batch, devices)
    results = run_in_threads(processes, lambda group: train_on_few_digits(plan, group=group))
    mx.random.seed(0)
    net = get_model("mlp", 10)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))
    loader = Loader(TRAIN, [mx.cpu()], batch)
    batches = [(x.asnumpy(), y.asnumpy()) for _ in range(EPOCHS) for (x,), (y,) in loader if len(x) == batch]
    expected = train_on_one_device(net, batches, "sgd", learning_rate=LR)
    assert relative_distance(parameter_arrays(results[0].net), expected) < 1e-5
    steps = len(TRAIN) // batch
    for result in results:
        epochs = [(epoch.step, epoch.images) for epoch in result.history]
        assert epochs == [(steps, steps * batch), (EPOCHS * steps, steps * batch)]
    lines = read_comparable_metrics(folder / "run")
    assert {line["images"] for line in lines if line["kind"] == "step"} == {batch}


@pytest.mark.long
@settings(max_examples=4)
@given(plug=st.integers(2, 12), schedule=st.sampled_from(["cosine", "step"]))
def test_schedules_count_its_steps_and_a_run_goes_on(tmp_path_factory, plug, schedule):
    folder = tmp_path_factory.mktemp("runs")
    more = {"lr_schedule": schedule, "warmup_epochs": 0.5, "checkpoint_every": "1"}
    plan = make_plan(config(folder / "whole", 20, **more), load_few_digits())
    assert (plan.steps_per_epoch, plan.rates.steps, plan.images_per_epoch) == (7, 14, 140)
    train_on_few_digits(plan.config)
    try:
        train_on_few_digits(config(folder / "run", 20, **more), StoppingReporter(plug))
    except RunStopped:
        train_on_few_digits(None, resume=folder / "run")
    assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
    assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")


def test_drop_last_is_recorded_printed_and_kept_on_resume(tmp_path, capsys):
    train_on_few_digits(config(tmp_path / "run", 20, checkpoint_every="1 epoch"), ConsoleReporter(bar=False))
    assert "20 in all; 7 steps per epoch, 10 images dropped\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["drop_last"]
    other = config(None, 20).replace(drop_last=False, epochs=3, out=None)
    with pytest.raises(ConfigError, match="--drop-last was True, and would now be None"):
        train_on_few_digits(other, resume=tmp_path / "run")


def test_whole_batches_are_kept_and_a_batch_larger_than_the_data_is_refused():
    assert make_plan(config(None, 30), load_few_digits()).steps_per_epoch == 5
    with pytest.raises(DataError, match="drop_last drops all 150 images"):
        Loader(TRAIN, [mx.cpu()], 151, drop_last=True)


@pytest.mark.parametrize("resident", [0, 2**28])
def test_a_loader_leaves_out_other_images_each_epoch(resident):
    loader = Loader(TRAIN, [mx.cpu()], 60, drop_last=True, resident_bytes=resident)
    full = Loader(TRAIN, [mx.cpu()], 60, resident_bytes=resident)
    assert len(loader) == 2 and len(full) == 3
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 2
        for batch, expected in zip(batches, list(full)):
            assert all((one[0] == other[0]).min().asscalar() for one, other in zip(batch, expected))
    assert loader.epoch == 2
