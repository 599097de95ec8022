"""The folder of a run: nothing of an earlier one is lost, and no file is ever half there."""

import errno
import fcntl
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import mxnet as mx
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
from gluonlab.runs.plot_curves import draw_curves, make_figure
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import FORMAT, PARAMETERS, DivergedEvent, Epoch, Step
from gluonlab.runs.run_writer import LOCK, FolderLock, RunDirectory, check_not_in_use
from gluonlab.training.loop import finalize_run

STEPS = [Step(1, 2.5, 0.5, 1, 64, 3.0), Step(2, 1.25, 1.0, 1, 64, 3.0), Step(3, 0.5, 1.5, 1, 7, 3.0)]
EPOCH = Epoch(epoch=1, step=3, images=135, training_seconds=2.0, loss=1.0, accuracy=0.5)
DIVERGED = DivergedEvent("the loss became nan")


# --- the folder


def test_a_new_folder_is_made_with_those_above_it(tmp_path):
    run = RunDirectory.create(str(tmp_path / "a" / "b"), "name")
    run.close()
    assert run.path == tmp_path / "a" / "b"
    assert file_names(run.path) == ["metrics.jsonl"]


def test_a_folder_with_anything_in_it_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / ".hidden").write_text("results")
    with pytest.raises(OutputError, match=f"--out {tmp_path} is not empty: give a new folder"):
        RunDirectory.create(str(tmp_path), "name")
    assert file_names(tmp_path) == [".hidden"]
    assert (tmp_path / ".hidden").read_text() == "results"


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("results")
    with pytest.raises(OutputError, match="/file is a file: give a folder"):
        RunDirectory.create(str(tmp_path / "file"), "name")
    with pytest.raises(OutputError, match=r"/file/below cannot be written \(Not a directory\): choose another place"):
        RunDirectory.create(str(tmp_path / "file" / "below"), "name")


def test_an_unwritable_folder_is_refused():
    """/proc takes no folders, not even root's."""
    with pytest.raises(
        OutputError, match=r"--out /proc/gluonlab cannot be written \(.*\): choose another place with --out"
    ):
        RunDirectory.create("/proc/gluonlab", "name")


def test_default_names_never_collide(empty_cwd):
    """Many runs that begin at the same moment, as those of a queue do."""
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create(None, "lenet-digits"), range(48)))
    for run in runs:
        run.close()
    paths = {run.path for run in runs}
    assert len(paths) == len(runs)
    assert {path.parent for path in paths} == {Path("runs")}
    assert all("lenet-digits" in path.name for path in paths)
    assert file_names(Path("runs")) == sorted(path.name for path in paths)


def test_a_current_folder_that_takes_no_runs_is_an_output_error(empty_cwd):
    (empty_cwd / "runs").write_text("a file in the way")
    with pytest.raises(OutputError, match="choose another place with --out"):
        RunDirectory.create(None, "lenet-digits")


# --- metrics.jsonl


def lines_of(tmp_path):
    return (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()


def test_metrics_are_one_json_object_a_line(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    run.write(*STEPS)
    run.write(EPOCH)
    run.write(DIVERGED)
    run.close()
    read = [json.loads(line) for line in lines_of(tmp_path)]
    assert read_lines(tmp_path / "run") == [*STEPS, EPOCH, DIVERGED]
    assert read[0] == {"kind": "step", "epoch": 1, "step": 1, "seconds": 3.0, "images": 64, "loss": 2.5, "lr": 0.5}
    assert [line["step"] for line in read[:3]] == [1, 2, 3]
    assert read[3:] == [
        {
            "kind": "epoch",
            "epoch": 1,
            "step": 3,
            "images": 135,
            "training_seconds": 2.0,
            "loss": 1.0,
            "accuracy": 0.5,
            "validation_loss": None,
            "top5_accuracy": None,
            "metrics": None,
            "waiting": 0.0,
            "lr": None,
            "seconds": None,
        },
        {"kind": "event", "event": "diverged", "message": "the loss became nan"},
    ]


def test_a_finished_epoch_is_on_disk_before_the_run_ends(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    run.write(*STEPS)
    run.write(EPOCH)
    assert len(lines_of(tmp_path)) == 4
    run.close()


@given(st.integers(0, 200))
def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("run")
    whole = [Step(step, 1 / step, 0.1) for step in range(1, 5)]
    content = "".join(json.dumps(line.to_dict()) + "\n" for line in whole)[:cut]
    (folder / "metrics.jsonl").write_text(content)
    assert read_lines(folder) == whole[: content.count("\n")]


def test_config_is_written_whole(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    run.write_config({"gpus": 2}, settings={"lr": 0.5}, classes=None)
    run.close()
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {
        "format": FORMAT, "gluonlab": gluonlab.__version__, "settings": {"lr": 0.5},
        "classes": None, "config": {"gpus": 2},
    }  # fmt: skip
    assert file_names(tmp_path / "run") == ["config.json", "metrics.jsonl"]


# --- a full disk


def test_parameters_are_whole_or_those_of_the_epoch_before(tmp_path):
    """MXNet's own writer would lose the last bytes of a full disk without a word."""
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    net = get_model("mlp", 10)
    net.initialize()
    net(mx.nd.zeros((1, 1, 28, 28)))
    run.write_parameters(net)
    whole = (run.path / PARAMETERS).read_bytes()
    for param in net.collect_params().values():
        param.set_data(param.data() + 1)
    with limit_file_size(len(whole) - 1), pytest.raises(
        OutputError, match=rf"^cannot write .*/{PARAMETERS}: File too large; choose "
    ):
        run.write_parameters(net)
    run.close()
    assert file_names(run.path) == ["metrics.jsonl", PARAMETERS]
    assert (run.path / PARAMETERS).read_bytes() == whole


def test_a_full_disk_raises_an_error_that_names_metrics_jsonl(tmp_path):
    said = r"^cannot write .*/metrics.jsonl: File too large; choose another place with --out$"
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    with limit_file_size(100):
        for write in (lambda: run.write(DivergedEvent("x" * 200)), run.draw_curves, run.close):
            with pytest.raises(OutputError, match=said):
                write()


def test_a_full_disk_leaves_no_partial_line(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    whole = []
    for number in range(40):
        try:
            with limit_file_size(1000):
                run.write(DivergedEvent("x" * (number + 1)))
            whole.append("x" * (number + 1))
        except OutputError:
            break
    said = [line["message"] for line in read_metrics(run.path)]
    assert said == whole
    assert 3 < len(said) < 40
    run.close()  # there is room again: nothing is lost
    said = [line["message"] for line in read_metrics(run.path)]
    assert said == [*whole, "x" * (len(whole) + 1)]


def test_removed_metrics_are_detected(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    (run.path / "metrics.jsonl").unlink()
    with pytest.raises(OutputError, match=r"metrics\.jsonl: it has been removed while it was writ"):
        run.write(DivergedEvent("late"))


@pytest.mark.parametrize(
    "first", [DivergedError("the loss became nan"), OutputError("no room"), KeyboardInterrupt()], ids=repr
)
def test_an_error_at_the_end_does_not_hide_the_first_error(tmp_path, first):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    run.write(*STEPS)
    plan = SimpleNamespace(confusion=False, export=False, epochs=3, compress=None)
    with limit_file_size(100), pytest.raises(type(first)) as raised, finalize_run(
        run, Result(plan, None, run.path, history=[None]), StopRequest()
    ):
        raise first
    assert raised.value is first


def test_a_second_ctrl_c_while_the_curves_are_drawn_changes_nothing(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("gluonlab.runs.plot_curves.draw_curves", interrupted)
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    plan = SimpleNamespace(confusion=False, export=False, epochs=3, compress=None)
    said, result = ("run holds every epoch that was finished, 1 of 3$", Result(plan, None, run.path, history=[None]))
    with pytest.raises(KeyboardInterrupt, match=said), finalize_run(run, result, StopRequest()):
        raise KeyboardInterrupt
    assert run._metrics is None
    assert file_names(run.path) == ["metrics.jsonl"]


def test_a_folder_is_taken_away_again_with_those_above_it_unless_something_else_is_in_it(tmp_path):
    (tmp_path / "there").mkdir()
    for place in ("a/b/run", "there", "full"):
        run = RunDirectory.create(str(tmp_path / place), "name")
        run.write_config({})
        run.close()
        if place == "full":
            (run.path / "mine").write_text("mine")
        run.discard()
    assert file_names(tmp_path) == ["full", "there"]
    assert file_names(tmp_path / "there") == []
    assert file_names(tmp_path / "full") == ["config.json", "metrics.jsonl", "mine"]


# --- curves.png


def test_the_curves_show_what_the_run_noted():
    steps = [Step(step=n, loss=1 / n, lr=rate) for n, rate in enumerate((0.1, 0.2, 0.2, 0.05), start=1)]
    epochs = [Epoch(epoch=n, step=2 * n, images=100, training_seconds=n, loss=1 / n, accuracy=n / 4) for n in (1, 2)]
    loss, accuracy, rate, speed = make_figure([*steps, *epochs]).axes
    titles = [axes.get_title() for axes in (loss, accuracy, rate, speed)]
    assert titles == ["training loss", "test accuracy, %", "learning rate", "images per second"]
    assert loss.lines[0].get_xydata().tolist() == [[0.5, 1], [1, 1 / 2], [1.5, 1 / 3], [2, 1 / 4]]
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 25], [2, 50]]
    held = [(0, 0.1), (0.5, 0.1), (0.5, 0.2), (1, 0.2), (1, 0.2), (1.5, 0.2), (1.5, 0.05), (2, 0.05)]
    assert [tuple(point) for point in rate.lines[0].get_xydata()] == held
    assert [bar.get_height() for bar in speed.patches] == [100, 50]


@pytest.mark.parametrize("accuracies", [(1.0,), (0.2, 1.0), (0.999, 1.0), (0.5, 0.6)])
def test_no_accuracy_is_drawn_above_100_percent(accuracies):
    steps = [Step(step=n, loss=1.0, lr=0.1) for n in range(1, len(accuracies) + 1)]
    epochs = [
        Epoch(epoch=n, step=n, images=9, training_seconds=1, loss=1.0, accuracy=share)
        for n, share in enumerate(accuracies, start=1)
    ]
    axes = make_figure([*steps, *epochs]).axes[1]
    low, high = axes.get_ylim()
    assert low < 100 * min(accuracies) and 100 * max(accuracies) <= high <= 100
    assert not axes.lines[0].get_clip_on()  # the dot at 100 % is whole


def test_curves_can_be_drawn_of_a_run_that_has_only_begun(tmp_path):
    draw_curves([Step(step=1, loss=2.0, lr=0.1)], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_does_not_depend_on_those_that_were_drawn_before(tmp_path):
    """Axes are drawn again with other curves: each picture has the bytes of a new figure's."""
    runs = [
        [Step(step=1, loss=2.0, lr=0.1)],
        [epoch_line(1, 0.3)],
        [Step(step=1, loss=0.1, lr=3.0), epoch_line(1, 0.999), epoch_line(2, 0.99)],
        [Step(step=n, loss=0.1, lr=0.1) for n in range(1, 100)]
        + [epoch_line(n, 0.5 + n / 200, images=10**6) for n in range(1, 100)],
    ]
    fresh = []
    for run in runs:
        make_figure(run).savefig(tmp_path / "new.png", format="png", dpi=110)
        fresh.append((tmp_path / "new.png").read_bytes())
    for number in [3, 0, 1, 2, 3, 1, 0, 2]:
        draw_curves(runs[number], tmp_path / "again.png")
        assert (tmp_path / "again.png").read_bytes() == fresh[number], number


def epoch_line(number, accuracy, images=100):
    return Epoch(epoch=number, step=number, images=images, training_seconds=1, loss=1 / number, accuracy=accuracy)


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


@pytest.fixture
def without_locks(monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def owned(folder, **changes):
    """The folder's lock file as a process of another time or host left it."""
    folder.mkdir(exist_ok=True)
    with_own = json.loads(here(folder))
    (folder / LOCK).write_text(json.dumps({**with_own, **changes}))


def here(folder):
    lock = FolderLock(folder)
    content = (folder / LOCK).read_text()
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


def test_the_message_names_process_and_host_until_the_folder_is_free(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    said = f"run is in use by process {os.getpid()} on {socket.gethostname()}: give another folder"
    for refused in (lambda: RunDirectory.check(str(run.path)), lambda: FolderLock(run.path)):
        with pytest.raises(OutputError, match=said):
            refused()
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
        ({"pid": 2**22 + 1}, True),  # more than Linux gives out
        ({"began": 1}, True),  # its number was given out again
        ({"host": "elsewhere"}, False),  # nobody can tell
    ],
    ids=str,
)
def test_on_a_disk_without_locks_the_process_that_is_named_decides(tmp_path, without_locks, changes, free):
    run = tmp_path / "run"
    owned(run, **changes)
    if free:
        FolderLock(run).release()
        assert file_names(run) == []
    else:
        with pytest.raises(OutputError, match="is in use by"):
            FolderLock(run)
        assert file_names(run) == [LOCK]


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"pid": "x"}', "\0" * 50, "9" * 5000])
def test_any_content_of_an_unlocked_lock_file_is_accepted(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    check_not_in_use(tmp_path)
    FolderLock(tmp_path).release()


def test_a_full_disk_leaves_no_lock(tmp_path):
    with limit_file_size(0), pytest.raises(OutputError, match="File too large"):
        RunDirectory.create(str(tmp_path / "a" / "run"), "name")
    assert file_names(tmp_path) == []
