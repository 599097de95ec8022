"""Folders of format 2, with the names of version 0.2.0, are read by every reader of runs."""

import shutil
from pathlib import Path

import pytest
from support.devices import device_spec
from support.drawn_runs import load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter, read_comparable_metrics
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.inference.loaded_network import load_run
from gluonlab.report.run_tables import epoch_rows, result_rows
from gluonlab.runs import run_schema
from gluonlab.runs.data_frame import EPOCHS, make_table
from gluonlab.runs.run_reader import RunRecord, read_description, read_runs
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import Epoch
from gluonlab.scratch.loop import Epoch as ScratchEpoch
from gluonlab.scratch.loop import TrainingResult
from gluonlab.study.compare_device_counts import ComparisonRow
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

OLD_KEYS = {"val_accuracy": "accuracy", "val_loss": "validation_loss", "val_top5_accuracy": "top5_accuracy"}
EPOCH_COUNT = 3


def train_few_digits(folder, reporter=None):
    config = TrainConfig(
        model="mlp", global_batch_size=50, epochs=EPOCH_COUNT, patience=EPOCH_COUNT, checkpoint_every=2, threads=1,
        devices=device_spec(1), out=str(folder),
    )  # fmt: skip
    return train(config, reporter=reporter or Reporter(), dataset=load_few_digits())


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    return train_few_digits(tmp_path_factory.mktemp("new") / "run")


@pytest.fixture(scope="module")
def old_folders(tmp_path_factory):
    """Folders as version 0.2.0 wrote them: a finished run, and an interrupted one."""
    folder, to_dict = tmp_path_factory.mktemp("old"), Epoch.to_dict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_schema, "FORMAT", 2)
        patch.setattr(Epoch, "to_dict", lambda line: {OLD_KEYS.get(k, k): v for k, v in to_dict(line).items()})
        train_few_digits(folder / "finished")
        with pytest.raises(RunStopped):
            train_few_digits(folder / "interrupted", StoppingReporter(5))
    return folder / "finished", folder / "interrupted"


def test_readers_find_the_same_numbers_under_the_old_names(new, old_folders):
    old = old_folders[0]
    assert read_description(old).format == 2
    epochs = [line for line in read_metrics(old) if line["kind"] == "epoch"]
    assert len(epochs) == EPOCH_COUNT and not any(set(line) & set(OLD_KEYS) for line in epochs)
    [old_run], [new_run] = read_runs([old]), read_runs([new.run_dir])
    for name in OLD_KEYS:
        assert [getattr(line, name) for line in old_run.epochs] == [getattr(line, name) for line in new.history]
        columns = [make_table([("", run.lines)], EPOCHS)[name] for run in (old_run, new_run)]
        assert columns[0] == columns[1]
    assert result_rows([old_run])[0][2:4] == result_rows([new_run])[0][2:4]
    assert [row[1:4] for row in epoch_rows(old_run)] == [row[1:4] for row in epoch_rows(new_run)]
    assert old_run.summary()["val_accuracy"] == new_run.summary()["val_accuracy"]
    assert evaluate_run(str(old), data=load_few_digits()).score.accuracy == new.val_accuracy
    assert load_run(old, data=load_few_digits()).mistakes().accuracy == new.val_accuracy


def test_an_old_run_is_resumed_with_new_names_in_later_lines(new, old_folders, tmp_path):
    folder = shutil.copytree(old_folders[1], tmp_path / "run")
    result = train(None, reporter=Reporter(), dataset=load_few_digits(), resume=folder)
    assert [line.val_accuracy for line in result.history] == [line.val_accuracy for line in new.history]
    keys = [name for line in read_metrics(folder) if line["kind"] == "epoch" for name in line if "accuracy" in name]
    assert keys[:2] == ["accuracy", "top5_accuracy"] and keys[-2:] == ["val_accuracy", "val_top5_accuracy"]
    [run] = read_runs([folder])
    assert [line.val_loss for line in run.epochs] == [line.val_loss for line in new.history]
    assert len(read_comparable_metrics(folder)) == len(read_comparable_metrics(new.run_dir))


@pytest.mark.parametrize(
    "owner, old, name",
    [
        ("result", "accuracy", "val_accuracy"),
        ("epoch", "accuracy", "val_accuracy"),
        ("epoch", "validation_loss", "val_loss"),
        ("epoch", "top5_accuracy", "val_top5_accuracy"),
        ("run", "accuracy", "val_accuracy"),
        ("run", "best_accuracy", "best_val_accuracy"),
        ("row", "accuracy", "val_accuracy"),
        ("scratch epoch", "accuracy", "val_accuracy"),
        ("scratch result", "accuracy", "val_accuracy"),
    ],
)
def test_an_old_attribute_leads_to_the_new_one_with_a_warning(owner, old, name):
    epoch, scratch_epoch = Epoch(1, 1, 9, 2.0, 1.0, 0.5, 0.7, 0.9), ScratchEpoch(1, 1.0, 2.0, 3.0, 0.5)
    owners = {
        "result": Result(None, None, None, history=[epoch]),
        "epoch": epoch,
        "run": RunRecord("a", Path("a"), "0.2.0", {}, [epoch]),
        "row": ComparisonRow(1, 64, 1000.0, 1.0, 1.0, 0.98, "a"),
        "scratch epoch": scratch_epoch,
        "scratch result": TrainingResult([scratch_epoch], []),
    }
    instance = owners[owner]
    with pytest.warns(DeprecationWarning, match=f"{type(instance).__name__}.{old} is now .*{name}"):
        assert getattr(instance, old) == getattr(instance, name) is not None
