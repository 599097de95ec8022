"""What is measured is what would be trained: graphs are bound as --overlap asks, whoever binds."""

import pytest
from support.bound_trainings import BottleneckCase, SimulatedClock
from support.devices import device_spec

from benchmarks import verdict
from gluonlab.config import TrainConfig
from gluonlab.engine import mxnet_setup
from gluonlab.study import learning_rate_finder
from gluonlab.study.compare_devices import compare
from gluonlab.study.short_training import AccuracyProbe, train_with_probe
from gluonlab.study.speedup import measure_step
from gluonlab.study.speedup.diagnosis import diagnose
from gluonlab.study.speedup.measure_step import MeasuredTraining
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine")
SETTINGS = {"devices": device_spec(2), "dataset": "synthetic", "model": "lenet", "batch_size": 4}
WAYS = {
    "data": {},
    "shared BatchNorm": {"model": "resnet8", "sync_bn": True},
    "pipeline": {"split": "pipeline"},
    "channels": {"split": "channels"},
}


@pytest.fixture
def asked(monkeypatch):
    """The sizes of pieces that MXNet was asked for, one for each graph that was bound."""
    found, set_variable = [], mxnet_setup.temporary_variable

    def spy(name, value):
        found.append(int(value))
        return set_variable(name, value)

    monkeypatch.setattr(mxnet_setup, "temporary_variable", spy)
    return found


@pytest.mark.parametrize(
    ("overlap", "size", "way"),
    [
        *((3, 3, way) for way in WAYS),
        ("off", mxnet_setup.WHOLE_BACKWARD, "data"),
        *(pytest.param("off", mxnet_setup.WHOLE_BACKWARD, way, marks=pytest.mark.long) for way in [*WAYS][1:]),
    ],
)
def test_every_window_binds_graphs_with_the_pieces_that_are_asked_for(asked, way, overlap, size):
    trained = MeasuredTraining(TrainConfig(overlap=overlap, **{**SETTINGS, **WAYS[way]}))
    _, smaller = measure_step._resized_batch(trained)
    windows = [
        trained.step, trained.repeat_step, lambda: trained.queue_phases(trained.batch, ["update"]),
        lambda: trained.queue_phases(smaller), lambda: trained.record(2),
    ]  # fmt: skip
    if way == "data":
        windows.append(lambda: trained.train_device_alone(1))
    for window in windows:
        window()
    trained.close()
    assert asked and set(asked) == {size}


def test_so_does_a_verdict_with_the_device_alone_and_all_that_it_tries(asked, monkeypatch):
    SimulatedClock.install(monkeypatch)
    monkeypatch.setattr("gluonlab.study.speedup.diagnosis.ADVICE_ROUNDS", 5)
    bound = BottleneckCase("few", fixed=0.01, image=0.0)
    found = diagnose(bound.make_config().replace(overlap=3), bound.make_dataset(), bound.make_strategy, rounds=5)
    assert found.tried_advice and len(asked) >= 5 and set(asked) == {3}


TRAININGS = {
    "a worker of bench": lambda config: verdict.make(
        {name: value for name, value in config.to_dict().items() if value is not None}
    )(2),
    "a trial of a study": lambda config: train_with_probe(config, AccuracyProbe([2], 1.1)),
    "--find-lr": lambda config: learning_rate_finder.find_learning_rate(
        config.replace(optimizer="adam", epochs=None), 100
    ),
    "--compare": lambda config: compare(config.replace(devices=None), [1, 2], Reporter()),
}


@pytest.mark.parametrize("road", TRAININGS)
def test_all_roads_that_train_obey_it(asked, road, tmp_path):
    config = TrainConfig(devices=device_spec(2), model="mlp", epochs=1, overlap=3)
    TRAININGS[road](config.replace(out=str(tmp_path / "out")))
    assert asked and set(asked) == {3}
