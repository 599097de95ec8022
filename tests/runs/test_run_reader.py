"""Folders that an earlier version wrote are read as what they say; those of a later one are not.

format_1/ was written by the version before formats had numbers: a finished run, whose parameters
are compressed, one that diverged, and a comparison.
"""

import json
import lzma
import shutil
from pathlib import Path

import pytest
from support.devices import device_spec
from support.made_up_runs import make_run
from support.run_files import read_metrics

from gluonlab.errors import DataError
from gluonlab.report.run_tables import result_rows
from gluonlab.runs.run_reader import read_description, read_finished_run, read_runs
from gluonlab.runs.run_schema import FORMAT, DivergedEvent, Epoch, Step
from gluonlab.training.evaluate_run import evaluate_run

OLD = Path(__file__).parent / "format_1"
WANTED = {  # of each kind of line
    "step": ["epoch", "step", "seconds", "images", "loss", "lr"],
    "epoch": ["epoch", "step", "images", "loss", "val_accuracy", "val_loss", "val_top5_accuracy", "waiting", "lr"],
}

OLD_KEYS = {"val_accuracy": "accuracy", "val_loss": "validation_loss", "val_top5_accuracy": "top5_accuracy"}


@pytest.mark.parametrize("name", ["finished", "diverged"])
def test_an_old_run_is_read_as_its_files_say(name):
    [run] = read_runs([OLD / name])
    lines = read_metrics(OLD / name)
    for kind, objects in (("step", run.steps), ("epoch", run.epochs)):
        expected = [line for line in lines if line["kind"] == kind]
        values = [{key: getattr(line, key) for key in WANTED[kind]} for line in objects]
        assert values == [{key: line[OLD_KEYS.get(key, key)] for key in WANTED[kind]} for line in expected]
        if kind == "epoch":  # whose seconds were those of training
            seconds = [(line.training_seconds, line.seconds) for line in objects]
            assert seconds == [(line["seconds"], None) for line in expected]
    assert len(run.lines) == len(lines)


def test_the_report_shows_old_runs_and_comparisons():
    runs = read_runs([OLD / "finished", OLD / "diverged", OLD / "comparison"])
    table = json.loads((OLD / "comparison" / "compare.json").read_text())
    assert [(run.devices, run.val_accuracy) for run in runs[2:]] == [(row["devices"], row["accuracy"]) for row in table]
    finished, diverged = result_rows(runs)[:2]
    accuracy = read_metrics(OLD / "finished")[-2]["accuracy"]
    assert finished[:3] == ("finished", "2", f"{accuracy:.4f}")
    assert (diverged[0], diverged[2], diverged[-1]) == ("diverged", "-", "0 of 3 epochs")
    assert [type(line) for line in runs[1].lines] == [Step, DivergedEvent]
    # settings that were not recorded are read from the config
    assert runs[0].settings["clip_norm"] is None and runs[0].settings["label_smoothing"] == 0.1


def test_an_old_run_is_evaluated_with_the_accuracy_that_it_recorded(tmp_path):
    folder = Path(shutil.copytree(OLD / "finished", tmp_path / "run"))
    (folder / "parameters.params").write_bytes(lzma.decompress((folder / "parameters.params.xz").read_bytes()))
    *_, epoch, confusion = read_metrics(folder)
    score = evaluate_run(str(folder), devices=device_spec(1), confusion=True, out=str(tmp_path / "out")).score
    assert (score.accuracy, score.top5_accuracy) == (epoch["accuracy"], epoch["top5_accuracy"])
    assert score.loss == pytest.approx(epoch["validation_loss"], rel=1e-5)
    assert score.confusion.tolist() == confusion["matrix"]


def test_the_backend_has_todays_name(tmp_path):
    for recorded, name in (("parameter-server", "dist_sync"), ("horovod", "horovod"), ("", "")):
        content = {"gluonlab": "0.1.0", "format": 2, "config": {}, "settings": {"backend": recorded}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert read_description(tmp_path).used == {"backend": name}


def set_format(folder, number):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "format": number}))


def test_a_run_of_a_later_format_is_refused(tmp_path):
    folder, foreign = make_run(tmp_path / "run"), "was not written by gluonlab run"
    later = f"has format {FORMAT + 1}, but this version of gluonlab reads only formats up to {FORMAT}"
    for number, message in ((FORMAT + 1, later), ("2", foreign), (True, foreign), (None, foreign)):
        set_format(folder, number)
        for read in (lambda: read_runs([folder]), lambda: read_finished_run(folder)):
            with pytest.raises(DataError, match=message):
                read()


def test_a_run_of_this_format_has_its_number(tmp_path):
    folder = make_run(tmp_path / "run", [Epoch(1, 1, 9, 2.0, 1.0, 0.5, seconds=3.0).to_dict()])
    assert read_description(folder).format == 1
    set_format(folder, FORMAT)
    [run] = read_runs([folder])
    assert (run.seconds, run.epochs[0].seconds) == (2.0, 3.0)
