"""All commands that train bind graphs with the backward pieces of --backward-bulk-size."""

import pytest
from support.bound_trainings import BottleneckCase, SimulatedClock
from support.devices import device_spec

from benchmarks import advice
from gluonlab.config import TrainConfig
from gluonlab.engine import mxnet_setup
from gluonlab.study import learning_rate_finder
from gluonlab.study.compare_device_counts import compare
from gluonlab.study.short_training import AccuracyProbe, train_with_probe
from gluonlab.study.speedup import measure_step
from gluonlab.study.speedup.diagnosis import diagnose
from gluonlab.study.speedup.measure_step import MeasuredTraining
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine")
SETTINGS = {"devices": device_spec(2), "dataset": "synthetic", "model": "lenet", "batch_size": 4}
STRATEGIES = {
    "data": {},
    "shared BatchNorm": {"model": "resnet8", "sync_bn": True},
    "pipeline": {"strategy": "pipeline"},
    "channels": {"strategy": "tensor"},
}


@pytest.fixture
def requested_sizes(monkeypatch):
    """The sizes of pieces that MXNet was requested_sizes for, one for each graph that was bound."""
    found, set_variable = [], mxnet_setup.temporary_variable

    def spy(name, value):
        found.append(int(value))
        return set_variable(name, value)

    monkeypatch.setattr(mxnet_setup, "temporary_variable", spy)
    return found


@pytest.mark.parametrize(
    ("overlap", "size", "strategy"),
    [
        *((3, 3, strategy) for strategy in STRATEGIES),
        ("off", mxnet_setup.WHOLE_BACKWARD, "data"),
        *(
            pytest.param("off", mxnet_setup.WHOLE_BACKWARD, strategy, marks=pytest.mark.long)
            for strategy in [*STRATEGIES][1:]
        ),
    ],
)
def test_every_window_binds_graphs_with_pieces_of_the_requested_size(requested_sizes, strategy, overlap, size):
    trained = MeasuredTraining(TrainConfig(backward_bulk_size=overlap, **{**SETTINGS, **STRATEGIES[strategy]}))
    _, smaller = measure_step._resized_batch(trained)
    windows = [
        trained.step, trained.repeat_step, lambda: trained.queue_phases(trained.batch, ["update"]),
        lambda: trained.queue_phases(smaller), lambda: trained.record(2),
    ]  # fmt: skip
    if strategy == "data":
        windows.append(lambda: trained.train_device_alone(1))
    for window in windows:
        window()
    trained.close()
    assert requested_sizes and set(requested_sizes) == {size}


def test_a_diagnosis_binds_with_them_too_on_one_device_and_for_all_advice(requested_sizes, monkeypatch):
    SimulatedClock.install(monkeypatch)
    monkeypatch.setattr("gluonlab.study.speedup.diagnosis.ADVICE_ROUNDS", 5)
    bound = BottleneckCase("few", fixed=0.01, image=0.0)
    found = diagnose(
        bound.make_config().replace(backward_bulk_size=3), bound.make_dataset(), bound.make_strategy, rounds=5
    )
    assert found.tried_advice and len(requested_sizes) >= 5 and set(requested_sizes) == {3}


TRAININGS = {
    "a worker of bench": lambda config: advice.make(
        {name: value for name, value in config.to_dict().items() if value is not None}
    )(2),
    "a trial of a study": lambda config: train_with_probe(config, AccuracyProbe([2], 1.1)),
    "--find-lr": lambda config: learning_rate_finder.find_learning_rate(
        config.replace(optimizer="adam", epochs=None), 100
    ),
    "--compare": lambda config: compare(config.replace(devices=None), [1, 2], Reporter()),
}


@pytest.mark.parametrize("command", TRAININGS)
def test_all_commands_that_train_bind_with_them(requested_sizes, command, tmp_path):
    config = TrainConfig(devices=device_spec(2), model="mlp", epochs=1, backward_bulk_size=3)
    TRAININGS[command](config.replace(out=str(tmp_path / "out")))
    assert requested_sizes and set(requested_sizes) == {3}
