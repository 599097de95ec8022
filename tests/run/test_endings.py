"""gluonlab run: however it ends, its files are whole, and a line describes them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import Mock

import mxnet as mx
import pytest
from support.commands import file_names
from support.devices import device
from support.full_disk import limit_file_size
from support.processes import clean_environment
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.data import DATASETS
from gluonlab.errors import DivergedError
from gluonlab.models import get_model
from gluonlab.runs.checkpoint import read_newest_checkpoint
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")


def test_a_full_disk_prints_one_line_with_the_file_and_leaves_nothing(run, empty_cwd):
    with limit_file_size(2048):
        status, out, err = run("--model", "mlp", "--epochs", "1", "--quiet", "--out", "new/run")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: cannot write new/run/[a-z.]+: File too large; choose another path with --out\n", err)
    assert file_names(empty_cwd) == []


@pytest.mark.parametrize("room", [0, 100, 2048, 30000])
def test_a_comparison_on_a_full_disk_does_not_block_the_next_one(run, empty_cwd, room):
    words = ["compare", "1,2", "--model", "mlp", "--epochs", "1", "--quiet", "--out", "both"]
    with limit_file_size(room):
        status, out, err = run(*words)
    assert (status, out, file_names(empty_cwd)) == (2, "", [])
    [line] = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert re.fullmatch(r"error: .*both.*File too large.*--out", line)


class ActingReporter(Reporter):
    """Calls ``act`` after some steps, and continues counting."""

    def __init__(self, steps, act):
        self.steps_left, self.act = steps, act

    def step_done(self, images, known):
        self.steps_left -= 1
        if not self.steps_left:
            self.act()


@pytest.fixture
def run_with(run, monkeypatch):
    """Return ``run_with(reporter, *arguments)``: the status and errors of a run with this reporter."""

    def run_command(reporter, *arguments):
        monkeypatch.setattr("gluonlab.cli.print_results.make_reporter", lambda silent: reporter)
        status, out, err = run(*arguments)
        assert (out, "Traceback" in err) == ("", False), err
        return status, err

    return run_command


WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM", signal.SIGHUP: "ended by SIGHUP"}
GO_ON = "to resume: gluonlab resume run"
FOUR_EPOCHS = ["--model", "mlp", "--threads", "1", "--global-batch-size", "64", "--epochs", "4",
               "--quiet", "--out", "run"]  # fmt: skip
HANGS_S = 300  # bounds what would wait forever


@pytest.mark.parametrize("sign", WORDS)
@pytest.mark.parametrize("room", [0, 30_000], ids=["no byte is free", "checkpoints do not fit"])
def test_a_signal_on_a_full_disk_ends_with_its_status_and_names_what_is_not_written(run_with, sign, room):
    with ExitStack() as stack:

        def act():
            stack.enter_context(limit_file_size(room))
            os.kill(os.getpid(), sign)

        reporter = ActingReporter(30, act)
        status, err = run_with(reporter, *FOUR_EPOCHS)
    assert (status, reporter.steps_left) == (128 + sign, 0)  # no step follows
    [line] = [line for line in err.splitlines() if line and not line.startswith("warning: ")]
    assert re.fullmatch(
        rf"{WORDS[sign]}: run contains the finished epochs \(1 of 4\); "
        r"cannot write run/checkpoints/\S+: File too large; .*",
        line,
    )


def test_a_second_ctrl_c_does_not_wait_for_the_checkpoint_of_the_first(run_with, monkeypatch):
    interrupted, run_ended, on_disk, waits = threading.Event(), threading.Event(), threading.Event(), []
    fsync = os.fsync

    def slow_fsync(file):
        """Stop the disk at the first Ctrl-C, and send the second one."""
        if interrupted.is_set() and threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGINT)
            waits.append(run_ended.wait(HANGS_S))
        fsync(file)
        if Path("run/checkpoints/step-000000023").exists():
            on_disk.set()  # with its folder

    def act():
        assert on_disk.wait(HANGS_S)
        interrupted.set()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("os.fsync", slow_fsync)
    status, err = run_with(ActingReporter(30, act), *FOUR_EPOCHS, "--checkpoint-every", "1 epoch")
    run_ended.set()
    for thread in threading.enumerate():
        if thread.name.startswith("gluonlab-checkpoint"):
            thread.join(HANGS_S)
    assert (status, waits) == (130, [True])
    assert err.splitlines()[-1] == f"interrupted: run contains the finished epochs (1 of 4); {GO_ON}"
    assert file_names(Path("run/checkpoints"))[-1:] == ["step-000000023"]
    assert read_newest_checkpoint(Path("run")).checkpoint.step == 23


MAKE_UP = "for --confusion and --export mxnet: gluonlab evaluate run --confusion --export mxnet"
ALL = "run contains the finished epochs"
LEFT = {  # steps, of 23 in an epoch; more options -> what an interrupted run says
    (1, ""): "no epoch is finished; run contains the steps of the first epoch",
    (30, ""): f"{ALL} (1 of 4)",
    (70, "--confusion --export mxnet"): f"{ALL} (3 of 4); {MAKE_UP}",
    (30, "--export mxnet"): f"{ALL} (1 of 4); for --export mxnet: gluonlab evaluate run --export mxnet",
}


@pytest.mark.parametrize(("steps", "more"), LEFT, ids=str)
def test_an_interrupted_run_describes_its_folder(run, run_with, steps, more):
    words = f"--gpus 2 --model mlp --epochs 4 --quiet --out run {more}"
    status, err = run_with(ActingReporter(steps, Mock(side_effect=KeyboardInterrupt)), *words.split())
    assert (status, err.splitlines()[-1]) == (130, f"interrupted: {LEFT[steps, more]}")
    assert ("curves.png" in file_names(Path("run"))) == (steps > 23)
    if more:
        assert run(*err.split("gluonlab ")[-1].split(), "--threads", "1")[0] == 0
        files = ["config.json", "curves.png", "metrics.jsonl", PARAMETERS, "export"]
        assert file_names(Path("run")) == sorted(files + ["confusion.png"] * ("--confusion" in more))


def test_a_comparison_interrupted_between_two_runs_says_which_are_left(run_with):
    class Interrupting(Reporter):
        def say(self, text):
            if "2 devices" in text:
                raise KeyboardInterrupt

    status, err = run_with(Interrupting(), "--compare=1,2", "--model=mlp", "--epochs=1", "--quiet", "--out=both")
    assert (status, err.splitlines()[-1]) == (130, "interrupted: both contains 1 of 2 runs")


def test_an_interruption_before_there_is_a_folder_says_that_nothing_was_written(run, empty_cwd, monkeypatch):
    def load(data_dir=None):
        raise KeyboardInterrupt

    monkeypatch.setitem(DATASETS, "digits", DATASETS["digits"]._replace(load=load))
    status, _, err = run("--quiet")
    assert (status, err.splitlines()[-1]) == (130, "interrupted: nothing was written")
    assert file_names(empty_cwd) == []


def test_a_run_that_diverges_late_prints_the_command_for_requested_files(empty_cwd):
    reporter = ActingReporter(30, Mock(side_effect=DivergedError("the loss became nan")))
    with pytest.raises(DivergedError, match=re.escape(f"the loss became nan; {MAKE_UP}")):
        train(TrainConfig(gpus=2, model="mlp", epochs=3, confusion=True, export=True, out="run"), reporter=reporter)
    [event] = [line for line in read_metrics(Path("run")) if line["kind"] == "event"]
    assert event["message"] == "the loss became nan"


def test_a_learning_rate_that_is_too_large_ends_within_eight_steps_of_the_bad_loss(run_with):
    reporter = ActingReporter(0, None)
    status, err = run_with(reporter, "--model=mlp", "--lr=1e6", "--optimizer=sgd", "--out=run", "--quiet")
    message = r"error: the loss became (\S+) at step (\d+): use a smaller learning rate \(--lr\)\n"
    loss, step = re.fullmatch(message, err).groups()
    assert not abs(float(loss)) < 10
    assert status == 1 and int(step) - 1 <= -reporter.steps_left <= int(step) + 8


@contextmanager
def started_run(folder, *arguments, until):
    """Start a run in ``folder``, wait for a line that matches ``until``, and kill the run in the end."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gluonlab.run", "--model", "mlp", *arguments, "--out", "run"],
        cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    with process:
        try:
            while not re.match(until, process.stdout.readline()):
                assert process.poll() is None, process.stderr.read()
            yield process
        finally:
            process.kill()


def check_last_line(err, word):
    assert "Traceback" not in err, err
    message = rf"{word}: run contains the finished epochs \(\d+ of 1000\); {GO_ON}"
    assert re.fullmatch(message, err.splitlines()[-1])


LONG = pytest.mark.long
SIGNALS = [(sign, epoch) for sign in (signal.SIGINT, signal.SIGTERM) for epoch in (2, 8)]


@pytest.mark.parametrize(
    ("sign", "epoch"), [pytest.param(*case, marks=[LONG] * (case != (signal.SIGTERM, 2))) for case in SIGNALS]
)
def test_ctrl_c_and_sigterm_end_a_run_and_leave_whole_files(tmp_path, sign, epoch):
    with started_run(tmp_path, "--gpus", "2", "--epochs", "1000", until=rf"epoch +{epoch}/") as process:
        process.send_signal(sign)
        _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 128 + sign
    check_last_line(err, WORDS[sign])
    run = tmp_path / "run"
    assert file_names(run) == ["checkpoints", "config.json", "curves.png", "metrics.jsonl", PARAMETERS]
    assert_whole(run)
    net = get_model("mlp", 10)
    net.load_parameters(str(run / PARAMETERS), ctx=device())
    assert net(mx.nd.zeros((1, 1, 28, 28), ctx=device())).shape == (1, 10)


def assert_whole(run):
    """Check that the only checkpoint, all lines and the configuration of a run can be read."""
    [checkpoint] = (run / "checkpoints").iterdir()
    assert read_newest_checkpoint(run).checkpoint.step == int(checkpoint.name[5:])
    assert {line["kind"] for line in read_metrics(run)} <= {"step", "epoch", "event"}
    assert (run / "metrics.jsonl").read_text()[-1:] in ("", "\n")
    json.loads((run / "config.json").read_text())


def test_more_than_two_ctrl_c_act_as_two(tmp_path):
    words = ["--threads", "1", "--epochs", "1000", "--checkpoint-every", "5steps"]
    with started_run(tmp_path, *words, until="epoch +2/") as process:
        process.send_signal(signal.SIGSTOP)  # its files stay as they are meanwhile
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        step = read_newest_checkpoint(tmp_path / "run").checkpoint.step
        process.send_signal(signal.SIGCONT)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        err = process.stderr.read()
    # after Python has restored its handlers, the system ends the process by the signal
    assert process.returncode in (130, -signal.SIGINT)
    check_last_line(err, "interrupted")
    assert read_newest_checkpoint(tmp_path / "run").checkpoint.step >= step >= 40


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_end_of_the_first_step_ends_the_run_after_it(run_with, sign):
    reporter = ActingReporter(0, None)
    texts = []

    def say(text):
        """Send the signal with the first line that the run prints."""
        texts.append(text)
        if len(texts) == 1:
            os.kill(os.getpid(), sign)

    reporter.say = say
    status, err = run_with(reporter, *["--gpus", "2", "--model", "mlp", "--epochs", "1000", "--out", "run"])
    assert texts and (status, reporter.steps_left) == (128 + sign, -1)
    message = f"{WORDS[sign]}: no epoch is finished; run contains the steps of the first epoch; {GO_ON}"
    assert err.splitlines()[-1] == message
    assert read_newest_checkpoint(Path("run")).checkpoint.step == 1
    assert_whole(Path("run"))
