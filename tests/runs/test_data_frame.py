"""Frames and CSV contain what metrics.jsonl contains."""

import csv
import io
import math
import sys

import pytest
from support.devices import device_spec
from support.drawn_runs import BATCH_SIZE, load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter
from support.made_up_runs import make_metrics, make_run
from support.run_files import read_metrics

import gluonlab
from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, DataError
from gluonlab.report.__main__ import main
from gluonlab.runs.run_result import Result
from gluonlab.study.compare_device_counts import compare
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

INTEGERS = {"epoch", "step", "images"}


def read_rows(folder, kind):
    """Return the lines of a kind as rows."""
    lines = [line for line in read_metrics(folder) if line["kind"] == kind]
    return [{name: value for name, value in line.items() if name not in ("kind", "metrics")} for line in lines]


def assert_same(frame, rows):
    """Check that the frame has the numbers of the rows, and NaN for missing ones."""
    assert len(frame) == len(rows)
    for (_, frame_row), row in zip(frame.iterrows(), rows):
        for name, value in row.items():
            assert math.isnan(frame_row[name]) if value is None else frame_row[name] == value
    for name in set(frame) - {"run"}:
        assert str(frame[name].dtype) == ("int64" if name in INTEGERS else "float64")


def config(folder, **more):
    return TrainConfig(threads=1, model="mlp", global_batch_size=BATCH_SIZE, epochs=2, out=str(folder), **more)


def test_a_resumed_run_has_every_step_and_epoch_once(tmp_path):
    folder, two = tmp_path / "run", config(tmp_path / "run", devices=device_spec(2), checkpoint_every="3 steps")
    metrics = {"half": lambda scores, labels: 0.5, "no": lambda scores, labels: math.nan}
    with pytest.raises(RunStopped):
        train(two, reporter=StoppingReporter(5), dataset=load_few_digits(), metrics=metrics)
    result = train(resume=folder, reporter=Reporter(), dataset=load_few_digits(), metrics=metrics)
    steps, epochs = result.frame("steps"), result.frame()
    assert [*steps.step] == [*range(1, len(steps) + 1)] and [*epochs.epoch] == [1, 2]
    assert_same(steps, read_rows(folder, "step"))
    assert_same(epochs, read_rows(folder, "epoch"))
    assert [*epochs["metrics.half"]] == [0.5, 0.5] and epochs["metrics.no"].isna().all()
    assert epochs.loss_scale.isna().all() and epochs.val_top5_accuracy.notna().all()
    assert [*epochs.images_per_second] == [*(epochs.images / epochs.training_seconds)]
    loaded = gluonlab.load_run(folder, devices=device_spec(1))
    assert loaded.frame().equals(epochs) and loaded.frame("steps").equals(steps)


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_the_runs_of_a_comparison_are_one_frame(tmp_path):
    rows = compare(config(tmp_path / "both"), [1, 2], Reporter(), load_few_digits())
    frame = gluonlab.frame(tmp_path / "both")
    assert [*frame.run] == ["1-device"] * 2 + ["2-devices"] * 2
    for row, (name, of_run) in zip(rows, frame.groupby("run")):
        assert of_run.val_accuracy.iloc[-1] == row.val_accuracy
        assert_same(of_run, read_rows(tmp_path / "both" / name, "epoch"))


def test_csv_reads_back_as_the_frame(tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    scale = {"kind": "event", "event": "loss_scale", "step": 4, "loss_scale": 512.0, "skipped": 1, "epoch": 1}
    make_run(tmp_path / "a")
    make_run(tmp_path / "b, c", [*make_metrics(epochs=1, lr=1 / 3), scale])
    for of in ("epochs", "steps"):
        with pytest.raises(SystemExit, match=r"^0$"):
            main([str(tmp_path), "--csv", of])
        text, frame = capsys.readouterr().out, gluonlab.frame(tmp_path, of=of)
        read = pandas.read_csv(io.StringIO(text), float_precision="round_trip")
        pandas.testing.assert_frame_equal(read, frame, check_dtype=False)
        rows = [*csv.DictReader(io.StringIO(text))]
        assert [row["run"] for row in rows] == [*frame.run] and rows[0]["run"] == "a"
        if of == "epochs":
            assert [row["loss_scale"] for row in rows] == ["", "", "", "512.0"]
    assert not (tmp_path / "report.html").exists()


def test_steps_of_format_1_have_no_epoch(tmp_path):
    old = [{name: value for name, value in line.items() if name != "epoch"} for line in make_metrics() if "lr" in line]
    frame = gluonlab.frame(make_run(tmp_path / "a", old), of="steps")
    assert frame.epoch.isna().all() and str(frame.epoch.dtype) == "Int64"
    assert gluonlab.frame(tmp_path / "a").empty


def test_user_errors_are_one_line(tmp_path, monkeypatch, capsys):
    folder = make_run(tmp_path / "a")
    for call, error, said in (
        (lambda: gluonlab.frame(), ConfigError, "no run directory was given"),
        (lambda: gluonlab.frame(tmp_path / "b"), DataError, "b is not a folder"),
        (lambda: gluonlab.frame(folder, of="epoch"), ConfigError, "did you mean 'epochs'"),
        (lambda: Result(None, None, None).frame(), ConfigError, "rank 0"),
    ):
        with pytest.raises(error, match=said) as raised:
            call()
        assert "\n" not in str(raised.value)
    for words, said in (
        (["--csv", "epoch"], "--csv epoch: unknown kind of rows 'epoch': choose epochs, steps"),
        (["--csv", "steps", "--json"], "--csv steps and --json contradict each other"),
        (["--csv", "steps", "--out-file", "x"], "--csv steps and --out-file contradict each other"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            main([str(folder), *words])
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="needs pandas, which is not installed: pip install"):
        gluonlab.frame(folder)
    with pytest.raises(SystemExit, match=r"^0$"):
        main([str(folder), "--csv", "epochs"])
    assert len(capsys.readouterr().out.splitlines()) == 4
