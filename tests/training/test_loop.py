"""Whole runs: reproducible, exact, recorded."""

import json
from functools import partial
from unittest.mock import Mock

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support import quick_runs
from support.commands import file_names
from support.devices import runs_on_gpus
from support.drawn_runs import load_few_digits
from support.reference import parameter_arrays
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.data.loading.augmentation import to_float
from gluonlab.errors import ConfigError, DivergedError, ModelError, OutputError
from gluonlab.models import get_model
from gluonlab.optimizers.optimizer_registry import NOT_OFFERED
from gluonlab.study.compare_device_counts import ComparisonRow, compare, comparison_table
from gluonlab.training import loop
from gluonlab.training.reporter import ConsoleReporter, Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
quick = partial(quick_runs.run_quickly, devices=None, gpus=2, epochs=2, batch_size=40)


LOADED = """
import sys
from gluonlab.run import main
try:
    main(["--gpus", "2", "--model", "lenet", "--dataset", "digits", "--epochs", "1", "--quiet"])
finally:
    print(*[name[len("gluonlab.") :] for name in sys.modules if name.startswith("gluonlab.")])
"""
RUN_FILES = ["config.json", "curves.png", "metrics.jsonl", "parameters.params"]
MOST_MODULES = 150  # of gluonlab that a plain run imports
OF_OTHER_RUNS = ("collectives", "launch", "export", "study", "parallel.pipeline", "parallel.tensor", "timeline")


@pytest.mark.cpu_only("GPUs need modules of their own")
def test_a_run_imports_what_it_needs(python):
    """No schedules, pipelines, split channels or exports for the kvstore of --gpus 2."""
    loaded = python("-c", LOADED).stdout.splitlines()[-1].split()
    assert "training.loop" in loaded and len(loaded) < MOST_MODULES
    assert [name for name in loaded if name.startswith(OF_OTHER_RUNS)] == []


@pytest.mark.parametrize(
    "settings", [{"gpus": 3}, {"model": "lenet", "epochs": 1}, {"device_cache_bytes": 0, "prefetch": 3}], ids=str
)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path, settings):
    settings = {"dataset": load_few_digits(), "batch_size": 8, "deterministic": runs_on_gpus(), **settings}
    runs = [quick(tmp_path, f"{number}", **settings, seed=seed) for number, seed in enumerate((5, 5, 6))]
    bits = [[array.tobytes() for array in parameter_arrays(run.net)] for run in runs]
    assert bits[0] == bits[1] != bits[2]
    assert [epoch.val_accuracy for epoch in runs[0].history] == [epoch.val_accuracy for epoch in runs[1].history]


def test_the_folder_of_a_run_contains_everything(tmp_path):
    run = quick(tmp_path, epochs=3)
    assert file_names(run.run_dir) == RUN_FILES
    assert (run.run_dir / "curves.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((run.run_dir / "config.json").read_text())
    assert TrainConfig(**content["config"]) == run.plan.config
    assert content["settings"]["bucket_bytes"] == (25 if runs_on_gpus() else 4) * 2**20
    assert content["settings"]["global_batch_size"] == 80
    lines = read_metrics(run.run_dir)
    steps, epochs = ([line for line in lines if line["kind"] == kind] for kind in ("step", "epoch"))
    seconds = [line["seconds"] for line in lines]  # since the run began
    assert seconds == sorted(seconds) and seconds[0] > 0 and seconds[-1] <= run.seconds
    assert 0 < sum(epoch["training_seconds"] for epoch in epochs) < seconds[-1]
    assert epochs[-1]["lr"] == steps[-1]["lr"]
    assert [line["step"] for line in steps] == list(range(1, 3 * 18 + 1))  # 1437 images in batches of 80
    for epoch in epochs:
        steps_of_epoch = [line for line in steps if line["epoch"] == epoch["epoch"]]
        assert sum(line["images"] for line in steps_of_epoch) == epoch["images"] == 1437
        assert epoch["loss"] == pytest.approx(sum(line["loss"] * line["images"] for line in steps_of_epoch) / 1437)


def test_the_parameters_file_gives_the_same_answers_on_one_device(tmp_path):
    run = quick(tmp_path, model="lenet", epochs=1)
    net = get_model("lenet", 10)  # laid out for no device in particular
    net.load_parameters(str(run.run_dir / "parameters.params"), ctx=mx.cpu(0))
    images, labels = run.plan.dataset.test.batch(np.arange(360))
    answers = net(to_float(nd, nd.array(images, dtype="uint8"))).asnumpy().argmax(axis=1)
    assert (answers == labels).mean() == pytest.approx(run.val_accuracy, abs=1 / 360)


def test_a_diverging_run_stops_within_8_steps_and_keeps_its_lines(tmp_path):
    with pytest.raises(DivergedError) as raised:
        quick(tmp_path, optimizer="sgd", lr=1e8, batch_size=4)
    *steps, event = read_metrics(tmp_path / "run")
    first_bad = int(str(raised.value).split("at step ")[1].split(":")[0])
    assert (event["kind"], event["message"]) == ("event", str(raised.value))
    assert np.isfinite([line["loss"] for line in steps]).all()
    assert [line["step"] for line in steps] == list(range(1, first_bad))


def test_a_run_that_diverges_in_its_last_update_fails_too(tmp_path):
    with pytest.raises(DivergedError, match="after step 1: use a smaller learning rate"):
        quick(tmp_path, optimizer="sgd", lr=1e30, batch_size=None, global_batch_size=2000, epochs=1)


@pytest.mark.parametrize("optimizer", NOT_OFFERED)
def test_optimizers_that_are_of_no_use_here_are_refused_with_the_reason(tmp_path, optimizer):
    with pytest.raises(ConfigError, match=f"--optimizer {optimizer} is not supported, because it .*: choose "):
        quick(tmp_path, optimizer=optimizer)
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_the_finished_epochs(tmp_path):
    reporter = Reporter()
    reporter.step_done = Mock(side_effect=[None] * 24 + [KeyboardInterrupt])  # in the second epoch
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path, epochs=5, reporter=reporter)
    assert file_names(tmp_path / "run") == RUN_FILES
    assert [line["epoch"] for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch"] == [1]


def test_a_picture_that_cannot_be_drawn_costs_nothing_else(tmp_path):
    reporter = Reporter()
    reporter.epoch_ends = lambda line: (tmp_path / "run" / "confusion.png").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*confusion.png: Is a directory"):
        quick(tmp_path, epochs=1, confusion=True, export=True, reporter=reporter)
    assert [line["event"] for line in read_metrics(tmp_path / "run") if line["kind"] == "event"] == ["confusion"]
    assert (tmp_path / "run" / "export" / "model.json").exists()
    assert (tmp_path / "run" / "curves.png").exists()


def test_a_network_that_does_not_fit_its_images_is_refused(tmp_path, monkeypatch):
    small = ArraySplit(np.zeros((10, 1, 4, 4), np.uint8), np.zeros(10, np.int32))
    dataset = Dataset("tiny", small, small, ("a", "b"), Defaults())
    monkeypatch.setattr("gluonlab.training.plan.load_dataset", lambda name, root: dataset)
    with pytest.raises(ModelError, match="lenet does not accept images of shape 1x4x4"):
        quick(tmp_path, model="lenet")
    assert not (tmp_path / "run").exists()


class ReadCounter(Reporter):
    """Counts the steps, and the times that the host waits for a device during an epoch."""

    def __init__(self, monkeypatch):
        self.reads, self.steps, self.is_counting = 0, 0, False
        read = nd.NDArray.asnumpy

        def count_and_read(array):
            self.reads += self.is_counting
            return read(array)

        monkeypatch.setattr(nd.NDArray, "asnumpy", count_and_read)

    def step_done(self, images, known):
        self.steps += 1
        self.is_counting = True

    def epoch_ends(self, line):
        self.is_counting = False


def test_no_step_waits_for_its_own_result(tmp_path, monkeypatch):
    """The losses of 60 steps on 2 devices are read in blocks of 4 steps: 2 reads a block.

    The first two steps also check, with one read each, whether all gradients are written.
    """
    reporter = ReadCounter(monkeypatch)
    quick(tmp_path, epochs=1, batch_size=12, reporter=reporter)
    evaluation_and_end, checks = 2 * 2 + 2 * 2, 2
    assert reporter.steps == 60
    assert reporter.reads <= 2 * 60 / 4 + evaluation_and_end + checks


def test_the_console_shows_what_matters(tmp_path, capsys):
    quick(tmp_path, epochs=1, batch_size=60, reporter=ConsoleReporter(bar=True))
    output = capsys.readouterr()
    ctxs = "gpu(0) gpu(1)" if runs_on_gpus() else "cpu(0) cpu(1), 1 thread each"
    texts = (ctxs, "60 per device, 120 in all", "device; seed 0", "first step", "epoch 1/1", "images/s")
    assert [text for text in texts if text not in output.out] == []
    assert all(len(line) <= 80 for line in output.out.splitlines())
    assert "epoch 1/1:   0%" in output.err  # the bar


def test_compare_trains_with_each_number_of_devices(tmp_path):
    folder = tmp_path / "compare"
    one, two = compare(
        TrainConfig(epochs=2, batch_size=40, model="mlp", out=str(folder)), [1, 2], Reporter(), load_few_digits()
    )
    assert [(row.devices, row.global_batch_size) for row in (one, two)] == [(1, 40), (2, 80)]
    assert (one.speedup, one.efficiency) == (1, 1)
    assert two.speedup == pytest.approx(two.images_per_second / one.images_per_second)
    assert two.efficiency == pytest.approx(two.speedup / 2)
    assert json.loads((folder / "compare.json").read_text()) == [vars(one), vars(two)]
    for name in () if runs_on_gpus() else ("1-device", "2-devices"):
        assert json.loads((folder / name / "config.json").read_text())["settings"]["threads_per_device"] == 1


def test_the_table_of_a_comparison():
    rows = [ComparisonRow(1, 64, 1000.0, 1.0, 1.0, 0.98, "a"), ComparisonRow(2, 128, 1900.0, 1.9, 0.95, 0.975, "b")]
    assert comparison_table(rows).splitlines()[1:] == [
        "      1      64      1,000     1.00x        100%        0.9800",
        "      2     128      1,900     1.90x         95%        0.9750",
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_digits_are_learned_whatever_the_seed(tmp_path, seed):
    run = loop.train(TrainConfig(gpus=2, seed=seed, out=str(tmp_path / "run")), reporter=Reporter())
    assert run.val_accuracy >= 0.97
