"""The folder of a run: nothing of an earlier run is lost, and every file is whole."""

import errno
import fcntl
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import Mock

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import file_names
from support.full_disk import limit_file_size
from support.run_files import read_metrics

import gluonlab
from gluonlab.errors import DivergedError, OutputError
from gluonlab.host.signals import StopRequest
from gluonlab.models import get_model
from gluonlab.runs.plot_curves import (
    MAX_POINTS,
    CurveDownsampler,
    draw_curves,
    epoch_middles,
    make_figure,
    step_positions,
)
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import FORMAT, PARAMETERS, DivergedEvent, Epoch, Step
from gluonlab.runs.run_writer import LOCK, FolderLock, RunDirectory, check_not_in_use
from gluonlab.training.finish_run import finalize_run

STEPS = [Step(1, 2.5, 0.5, 1, 64, 3.0), Step(2, 1.25, 1.0, 1, 64, 3.0), Step(3, 0.5, 1.5, 1, 7, 3.0)]
EPOCH = Epoch(epoch=1, step=3, images=135, training_seconds=2.0, loss=1.0, val_accuracy=0.5)
DIVERGED = DivergedEvent("the loss became nan")


# --- the folder


@pytest.fixture
def run(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    yield run
    with suppress(OutputError):
        run.close()


def test_a_new_folder_is_created_with_its_parents(tmp_path):
    run = RunDirectory.create(str(tmp_path / "a" / "b"), "name")
    run.close()
    assert run.path == tmp_path / "a" / "b"
    assert file_names(run.path) == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("full", "--out full is not empty: use a new folder"),
        ("file", "--out file is a file: use a new or empty folder"),
        ("file/below", r"file/below cannot be written \(Not a directory\): choose another directory"),
        ("/proc/gluonlab", r"--out /proc/gluonlab cannot be written \(.*\): choose another directory with --out"),
        (None, "choose another directory with --out"),
    ],
)
def test_a_folder_that_cannot_be_created_is_refused(empty_cwd, out, message):
    (empty_cwd / "full").mkdir()
    files = [empty_cwd / name for name in ("full/.hidden", "file", "runs")]
    for file in files:
        file.write_text("results")
    with pytest.raises(OutputError, match=message):
        RunDirectory.create(out, "name")
    assert [file.read_text() for file in files] == ["results"] * 3


def test_default_names_never_collide(empty_cwd):
    """Many runs start at the same moment, as those of a queue do."""
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create(None, "lenet-digits"), range(48)))
    for run in runs:
        run.close()
    names = {run.path.name for run in runs}
    assert len(names) == len(runs) and all("lenet-digits" in name for name in names)
    assert {run.path.parent for run in runs} == {Path("runs")}
    assert file_names(Path("runs")) == sorted(names)


# --- metrics.jsonl


def test_each_line_of_metrics_is_a_json_object_and_on_disk_at_the_end_of_its_epoch(run):
    run.write(*STEPS)
    run.write(EPOCH)
    assert len(read_metrics(run.path)) == 4
    run.write(DIVERGED)
    run.close()
    assert read_lines(run.path) == [*STEPS, EPOCH, DIVERGED]
    first, _, _, epoch, event = read_metrics(run.path)
    assert first == {"kind": "step", "epoch": 1, "step": 1, "seconds": 3.0, "images": 64, "loss": 2.5, "lr": 0.5}
    assert epoch == {
        "kind": "epoch", "epoch": 1, "step": 3, "images": 135, "training_seconds": 2.0, "loss": 1.0,
        "val_accuracy": 0.5, "val_loss": None, "val_top5_accuracy": None, "metrics": None, "waiting": 0.0, "lr": None,
        "seconds": None,
    }  # fmt: skip
    assert event == {"kind": "event", "event": "diverged", "message": "the loss became nan"}


@given(st.integers(0, 200))
def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path_factory, length):
    folder = tmp_path_factory.mktemp("run")
    lines = [Step(step, 1 / step, 0.1) for step in range(1, 5)]
    content = "".join(json.dumps(line.to_dict()) + "\n" for line in lines)[:length]
    (folder / "metrics.jsonl").write_text(content)
    assert read_lines(folder) == lines[: content.count("\n")]


def test_config_is_written_whole(run):
    run.write_config({"gpus": 2}, settings={"lr": 0.5}, classes=None)
    run.close()
    content = {"format": FORMAT, "gluonlab": gluonlab.__version__, "settings": {"lr": 0.5}, "classes": None}
    assert json.loads((run.path / "config.json").read_text()) == {**content, "config": {"gpus": 2}}
    assert file_names(run.path) == ["config.json", "metrics.jsonl"]


# --- a full disk


def test_parameters_are_whole_or_those_of_the_previous_epoch(run):
    """MXNet's own writer would silently lose the last bytes on a full disk."""
    net = get_model("mlp", 10)
    net.initialize()
    net(mx.nd.zeros((1, 1, 28, 28)))
    run.write_parameters(net)
    content = (run.path / PARAMETERS).read_bytes()
    for param in net.collect_params().values():
        param.set_data(param.data() + 1)
    message = rf"^cannot write .*/{PARAMETERS}: File too large; choose "
    with limit_file_size(len(content) - 1), pytest.raises(OutputError, match=message):
        run.write_parameters(net)
    run.close()
    assert file_names(run.path) == ["metrics.jsonl", PARAMETERS]
    assert (run.path / PARAMETERS).read_bytes() == content


def test_a_full_disk_raises_an_error_that_names_metrics_jsonl(run):
    message = r"^cannot write .*/metrics.jsonl: File too large; choose another path with --out$"
    with limit_file_size(100):
        for write in (lambda: run.write(DivergedEvent("x" * 200)), run.draw_curves, run.close):
            with pytest.raises(OutputError, match=message):
                write()


def test_a_full_disk_leaves_no_partial_line(run):
    messages, is_full = [], False
    while not is_full:
        messages.append("x" * (len(messages) + 1))
        try:
            with limit_file_size(1000):
                run.write(DivergedEvent(messages[-1]))
        except OutputError:
            is_full = True
    assert [line["message"] for line in read_metrics(run.path)] == messages[:-1]
    assert 4 < len(messages) < 40
    run.close()  # there is space again: nothing is lost
    assert [line["message"] for line in read_metrics(run.path)] == messages


def test_removed_metrics_are_detected(run):
    (run.path / "metrics.jsonl").unlink()
    with pytest.raises(OutputError, match=r"it was removed while it was written"):
        run.write(DivergedEvent("late"))


def unfinished_result(run):
    plan = SimpleNamespace(confusion=False, export=False, epochs=3, compress=None)
    return Result(plan, None, run.path, history=[None])


@pytest.mark.parametrize(
    "first", [DivergedError("the loss became nan"), OutputError("no room"), KeyboardInterrupt()], ids=repr
)
def test_an_error_at_the_end_does_not_hide_the_first_error(run, first):
    run.write(*STEPS)
    finalizing = finalize_run(run, unfinished_result(run), StopRequest())
    with limit_file_size(100), pytest.raises(type(first)) as raised, finalizing:
        raise first
    assert raised.value is first


def test_a_second_ctrl_c_while_the_curves_are_drawn_changes_nothing(run, monkeypatch):
    monkeypatch.setattr("gluonlab.runs.plot_curves.draw_curves", Mock(side_effect=KeyboardInterrupt))
    finalizing = finalize_run(run, unfinished_result(run), StopRequest())
    with pytest.raises(KeyboardInterrupt, match=r"run contains the finished epochs \(1 of 3\)$"), finalizing:
        raise KeyboardInterrupt
    assert run._metrics is None
    assert file_names(run.path) == ["metrics.jsonl"]


def test_a_discarded_folder_is_removed_with_its_new_parents_unless_it_has_other_files(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("a/b/run", "there", "full"):
        run = RunDirectory.create(str(tmp_path / name), "name")
        run.write_config({})
        run.close()
        if name == "full":
            (run.path / "mine").write_text("mine")
        run.discard()
    assert file_names(tmp_path) == ["full", "there"]
    assert file_names(tmp_path / "there") == []
    assert file_names(tmp_path / "full") == ["config.json", "metrics.jsonl", "mine"]


# --- curves.png


def epoch_line(number, accuracy, images=100):
    return Epoch(epoch=number, step=number, images=images, training_seconds=1, loss=1 / number, val_accuracy=accuracy)


def test_the_curves_show_the_lines_of_the_run():
    steps = [Step(step=n, loss=1 / n, lr=rate) for n, rate in enumerate((0.1, 0.2, 0.2, 0.05), start=1)]
    epochs = [
        Epoch(epoch=n, step=2 * n, images=100, training_seconds=n, loss=1 / n, val_accuracy=n / 4) for n in (1, 2)
    ]
    loss, accuracy, rate, speed = make_figure([*steps, *epochs]).axes
    titles = [axes.get_title() for axes in (loss, accuracy, rate, speed)]
    assert titles == ["training loss", "validation accuracy, %", "learning rate", "images per second"]
    assert loss.lines[0].get_xydata().tolist() == [[0.5, 1], [1, 1 / 2], [1.5, 1 / 3], [2, 1 / 4]]
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 25], [2, 50]]
    held = [[0, 0.1], [0.5, 0.1], [0.5, 0.2], [1, 0.2], [1, 0.2], [1.5, 0.2], [1.5, 0.05], [2, 0.05]]
    assert rate.lines[0].get_xydata().tolist() == held
    assert [bar.get_height() for bar in speed.patches] == [100, 50]


@given(epochs=st.integers(1, 5), per_epoch=st.integers(1, 20))
def test_an_epochs_mean_lies_among_its_steps(epochs, per_epoch):
    steps = [Step(n, 1.0, 0.1) for n in range(1, epochs * per_epoch + 1)]
    ended = [Epoch(n, n * per_epoch, 10, 1.0, 1.0, 0.5) for n in range(1, epochs + 1)]
    at = np.array(step_positions(steps, ended)).reshape(epochs, per_epoch)
    half_a_step = 0.5 / per_epoch
    assert at.mean(axis=1) - half_a_step == pytest.approx(epoch_middles(ended))


@given(count=st.integers(0, 9 * MAX_POINTS), seed=st.integers(0, 9))
def test_a_growing_curve_has_means_over_equal_stretches(count, seed):
    ys, curve, size = np.random.RandomState(seed).normal(size=count), CurveDownsampler(), 1
    for x, y in enumerate(ys):
        curve.add(x, y)
    while count // size >= 2 * MAX_POINTS:
        size *= 2
    whole = count // size * size
    assert len(curve.curve[0]) == count // size < 2 * MAX_POINTS
    for points, values in zip(curve.curve, (np.arange(count), ys)):
        assert points == pytest.approx(values[:whole].reshape(-1, size).mean(axis=1))


@pytest.mark.parametrize("accuracies", [(1.0,), (0.2, 1.0), (0.999, 1.0), (0.5, 0.6)])
def test_no_accuracy_is_drawn_above_100_percent(accuracies):
    steps = [Step(step=n, loss=1.0, lr=0.1) for n in range(1, len(accuracies) + 1)]
    epochs = [epoch_line(number, accuracy) for number, accuracy in enumerate(accuracies, start=1)]
    axes = make_figure([*steps, *epochs]).axes[1]
    low, high = axes.get_ylim()
    assert low < 100 * min(accuracies) and 100 * max(accuracies) <= high <= 100
    assert not axes.lines[0].get_clip_on()  # the dot at 100 % is whole


def test_a_picture_does_not_depend_on_earlier_pictures(tmp_path):
    """Axes are drawn again with other curves: each picture has the bytes of a new figure's."""
    runs = [
        [Step(step=1, loss=2.0, lr=0.1)],
        [epoch_line(1, 0.3)],
        [Step(step=1, loss=0.1, lr=3.0), epoch_line(1, 0.999), epoch_line(2, 0.99)],
        [Step(step=n, loss=0.1, lr=0.1) for n in range(1, 100)]
        + [epoch_line(n, 0.5 + n / 200, images=10**6) for n in range(1, 100)],
    ]
    expected = []
    for run in runs:
        make_figure(run).savefig(tmp_path / "new.png", format="png", dpi=110)
        expected.append((tmp_path / "new.png").read_bytes())
    for number in [3, 0, 1, 2, 3, 1, 0, 2]:
        draw_curves(runs[number], tmp_path / "again.png")
        assert (tmp_path / "again.png").read_bytes() == expected[number], number


@pytest.mark.parametrize("name", ["lenet-../../../outside", "/outside", "a\0b", "a\x1b[2J\n", "x" * 300])
def test_a_folder_name_stays_in_runs(name, empty_cwd):
    run = RunDirectory.create(None, name)
    run.close()
    assert run.path.resolve().parent == empty_cwd / "runs"
    assert run.path.name.isascii() and run.path.name.isprintable()
    assert [entry.name for entry in empty_cwd.iterdir()] == ["runs"]


KILLED = """
import os, pathlib, signal, sys
from gluonlab.files.atomic_files import atomic_path
from gluonlab.runs.run_writer import FolderLock
run = pathlib.Path(sys.argv[1])
lock = FolderLock(run)
with atomic_path(run / "parameters.params"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def owner_of(folder):
    """Return the content of the lock file that this process writes."""
    lock = FolderLock(folder)
    content = json.loads((folder / LOCK).read_text())
    lock.release()
    assert file_names(folder) == []
    return content


@pytest.mark.parametrize("out", ["run", None])
def test_of_many_at_once_one_gets_a_folder_and_the_others_another_or_none(empty_cwd, out):
    many = 8
    together = Barrier(many)

    def create(_):
        together.wait()
        try:
            return RunDirectory.create(out, "name")
        except OutputError as error:
            assert "is in use by" in str(error) or "is not empty" in str(error)

    with ThreadPoolExecutor(many) as pool:
        runs = [run for run in pool.map(create, range(many)) if run is not None]
    assert len({run.path for run in runs}) == len(runs) == (many if out is None else 1)
    for run in runs:
        run.close()
        assert file_names(run.path) == ["metrics.jsonl"]


def test_the_message_names_process_and_host_until_the_folder_is_free(run):
    message = f"run is in use by process {os.getpid()} on {socket.gethostname()}: use another folder"
    for use in (lambda: RunDirectory.check(str(run.path)), lambda: FolderLock(run.path)):
        with pytest.raises(OutputError, match=message):
            use()
    run.close()
    FolderLock(run.path).release()


def test_the_folder_of_a_killed_process_is_free_and_its_files_go_when_the_next_run_begins(python, empty_cwd):
    killed = empty_cwd / "runs" / "killed"
    killed.mkdir(parents=True)
    (killed / ".mine-0123abcd").touch()
    assert python("-c", KILLED, str(killed)).returncode == -9
    left = re.compile(r"\.in-use|\.mine-0123abcd|\.parameters\.params-[0-9a-f]{8}")
    assert len(file_names(killed)) == 3
    assert all(left.fullmatch(name) for name in file_names(killed))
    RunDirectory.create(None, "next").close()
    assert file_names(killed) == [LOCK, ".mine-0123abcd"]
    check_not_in_use(killed)
    FolderLock(killed).release()
    assert file_names(killed) == [".mine-0123abcd"]


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),  # larger than Linux gives out
        ({"began": 1}, True),  # its number was given out again
        ({"host": "elsewhere"}, False),  # nobody can tell
        ({"began": None}, False),  # as on macOS, which does not tell when a process began
        ({"began": None, "pid": 2**22 + 1}, True),
    ],
    ids=str,
)
def test_on_a_disk_without_locks_the_process_in_the_file_decides(tmp_path, monkeypatch, changes, free):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    (tmp_path / LOCK).write_text(json.dumps({**owner_of(tmp_path), **changes}))
    with nullcontext() if free else pytest.raises(OutputError, match="is in use by"):
        FolderLock(tmp_path).release()
    assert file_names(tmp_path) == ([] if free else [LOCK])


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"pid": "x"}', "\0" * 50, "9" * 5000])
def test_any_content_of_an_unlocked_lock_file_is_accepted(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    check_not_in_use(tmp_path)
    FolderLock(tmp_path).release()


def test_a_full_disk_leaves_no_lock(tmp_path):
    with limit_file_size(0), pytest.raises(OutputError, match="File too large"):
        RunDirectory.create(str(tmp_path / "a" / "run"), "name")
    assert file_names(tmp_path) == []
