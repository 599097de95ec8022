"""python -m gluonlab.run: however it ends, what it leaves is whole, and said."""

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
    assert re.fullmatch(r"error: cannot write new/run/[a-z.]+: File too large; choose another place with --out\n", err)
    assert file_names(empty_cwd) == []


@pytest.mark.parametrize("room", [0, 100, 2048, 30000])
def test_a_comparison_on_a_full_disk_does_not_block_the_next_one(run, empty_cwd, room):
    words = ["--compare", "1,2", "--model", "mlp", "--epochs", "1", "--quiet", "--out", "both"]
    with limit_file_size(room):
        status, out, err = run(*words)
    assert (status, out, file_names(empty_cwd)) == (2, "", [])
    [line] = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert re.fullmatch(r"error: .*both.*File too large.*--out", line)


class Breaks(Reporter):
    """Calls ``act`` after so many steps, and counts on."""

    def __init__(self, steps, act):
        self.left, self.act = steps, act

    def step_done(self, images, known):
        self.left -= 1
        if not self.left:
            self.act()


def raising(error):
    def act():
        raise error

    return act


@pytest.fixture
def reported(run, monkeypatch):
    """``reported(reporter, *arguments)``: a run that tells all to this reporter."""

    def end(reporter, *arguments):
        monkeypatch.setattr("gluonlab.cli.print_results.make_reporter", lambda silent: reporter)
        status, out, err = run(*arguments)
        assert (out, "Traceback" in err) == ("", False), err
        return status, err

    return end


WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM", signal.SIGHUP: "ended by SIGHUP"}
GO_ON = "to go on: python -m gluonlab.run --resume run"
FOUR_EPOCHS = ["--model", "mlp", "--threads", "1", "--global-batch-size", "64", "--epochs", "4",
               "--quiet", "--out", "run"]  # fmt: skip
HANGS_S = 300  # bounds what would wait forever


@pytest.mark.parametrize("sign", WORDS)
@pytest.mark.parametrize("room", [0, 30_000], ids=["no byte is free", "checkpoints do not fit"])
def test_a_signal_on_a_full_disk_ends_with_its_status_and_says_what_is_not_written(reported, sign, room):
    with ExitStack() as stack:

        def act():
            stack.enter_context(limit_file_size(room))
            os.kill(os.getpid(), sign)

        reporter = Breaks(30, act)
        status, err = reported(reporter, *FOUR_EPOCHS)
    assert (status, reporter.left) == (128 + sign, 0)  # no step follows
    [line] = [line for line in err.splitlines() if line and not line.startswith("warning: ")]
    assert re.fullmatch(
        rf"{WORDS[sign]}: run holds every epoch that was finished, 1 of 4; "
        r"cannot write run/checkpoints/\S+: File too large; .*",
        line,
    )


def test_a_second_ctrl_c_does_not_wait_for_the_checkpoint_of_the_first(reported, monkeypatch):
    asked, left, on_disk, waited = threading.Event(), threading.Event(), threading.Event(), []
    fsync = os.fsync

    def slow(file):
        """From the first Ctrl-C on the disk stands still; the second comes when it is seen."""
        if asked.is_set() and threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGINT)
            waited.append(left.wait(HANGS_S))
        fsync(file)
        if Path("run/checkpoints/step-000000023").exists():
            on_disk.set()  # its folder, too

    def act():
        assert on_disk.wait(HANGS_S)
        asked.set()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("os.fsync", slow)
    status, err = reported(Breaks(30, act), *FOUR_EPOCHS, "--checkpoint-every", "1 epoch")
    left.set()
    for thread in threading.enumerate():
        if thread.name.startswith("gluonlab-checkpoint"):
            thread.join(HANGS_S)
    assert (status, waited) == (130, [True])
    said = f"interrupted: run holds every epoch that was finished, 1 of 4; {GO_ON}"
    assert err.splitlines()[-1] == said
    assert file_names(Path("run/checkpoints"))[-1:] == ["step-000000023"]
    assert read_newest_checkpoint(Path("run")).checkpoint.step == 23


MAKE_UP = "for --confusion and --export: python -m gluonlab.run --evaluate run --confusion --export"
ALL = "run holds every epoch that was finished"
LEFT = {  # steps, of 23 in an epoch; more options -> what an interrupted run says
    (1, ""): "no epoch was finished; run holds the steps of the first",
    (30, ""): f"{ALL}, 1 of 4",
    (70, "--confusion --export"): f"{ALL}, 3 of 4; {MAKE_UP}",
    (30, "--export"): f"{ALL}, 1 of 4; for --export: python -m gluonlab.run --evaluate run --export",
}


@pytest.mark.parametrize(("steps", "more"), LEFT, ids=str)
def test_an_interrupted_run_describes_its_folder(run, reported, steps, more):
    words = f"--gpus 2 --model mlp --epochs 4 --quiet --out run {more}"
    status, err = reported(Breaks(steps, raising(KeyboardInterrupt)), *words.split())
    assert (status, err.splitlines()[-1]) == (130, f"interrupted: {LEFT[steps, more]}")
    assert ("curves.png" in file_names(Path("run"))) == (steps > 23)
    if more:
        assert run(*err.split("gluonlab.run ")[-1].split(), "--threads", "1")[0] == 0
        files = ["config.json", "curves.png", "metrics.jsonl", PARAMETERS, "export"]
        files += ["confusion.png"] * ("--confusion" in more)
        assert file_names(Path("run")) == sorted(files)


def test_a_comparison_interrupted_between_two_runs_says_which_are_left(reported):
    class Interrupted(Reporter):
        def say(self, text):
            if "2 devices" in text:
                raise KeyboardInterrupt

    words = "--compare 1,2 --model mlp --epochs 1 --quiet --out both"
    status, err = reported(Interrupted(), *words.split())
    said = "interrupted: both holds the finished runs, 1 of 2"
    assert (status, err.splitlines()[-1]) == (130, said)


def test_an_interruption_before_there_is_a_folder_says_that_nothing_was_written(run, empty_cwd, monkeypatch):
    digits = DATASETS["digits"]._replace(load=raising(KeyboardInterrupt))
    monkeypatch.setitem(DATASETS, "digits", digits)
    status, _, err = run("--quiet")
    assert (status, err.splitlines()[-1]) == (130, "interrupted: nothing was written")
    assert file_names(empty_cwd) == []


def test_a_run_that_diverges_late_prints_the_command_for_requested_files(empty_cwd):
    reporter = Breaks(30, raising(DivergedError("the loss became nan")))
    with pytest.raises(DivergedError, match=re.escape(f"the loss became nan; {MAKE_UP}")):
        train(TrainConfig(gpus=2, model="mlp", epochs=3, confusion=True, export=True, out="run"), reporter=reporter)
    [event] = [line for line in read_metrics(Path("run")) if line["kind"] == "event"]
    assert event["message"] == "the loss became nan"


def test_a_learning_rate_that_is_too_large_ends_with_the_step_that_it_spoiled(reported):
    """Within eight steps."""
    reporter = Breaks(0, None)
    words = "--model mlp --lr 1e6 --optimizer sgd --out run --quiet"
    status, err = reported(reporter, *words.split())
    [line] = err.splitlines()
    loss, step = re.fullmatch(
        r"error: the loss became (\S+) at step (\d+): use a smaller learning rate \(--lr\)", line
    ).groups()
    step = int(step)
    assert not abs(float(loss)) < 10
    assert status == 1 and step - 1 <= -reporter.left <= step + 8
    metrics = read_metrics(Path("run"))
    [event] = [entry for entry in metrics if entry["kind"] == "event"]
    assert event["message"] == line[len("error: ") :]
    assert all(entry["step"] < step for entry in metrics if entry["kind"] == "step")


@contextmanager
def real_process(folder, *arguments, until):
    """A run in ``folder`` that has printed a line that begins so; it is killed in the end."""
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


def assert_says_what_is_there(err, word):
    assert "Traceback" not in err, err
    said = rf"{word}: run holds every epoch that was finished, \d+ of 1000; {GO_ON}"
    assert re.fullmatch(said, err.splitlines()[-1])


@pytest.mark.parametrize(
    ("sign", "epoch"),
    [
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 8, marks=pytest.mark.long),
        (signal.SIGTERM, 2),
        pytest.param(signal.SIGTERM, 8, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_and_sigterm_end_a_run_and_leave_whole_files(tmp_path, sign, epoch):
    words = ["--gpus", "2", "--epochs", "1000"]
    with real_process(tmp_path, *words, until=rf"epoch +{epoch}/") as process:
        process.send_signal(sign)
        _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 128 + sign
    assert_says_what_is_there(err, WORDS[sign])
    run = tmp_path / "run"
    assert file_names(run) == ["checkpoints", "config.json", "curves.png", "metrics.jsonl", PARAMETERS]
    assert_whole(run)
    net = get_model("mlp", 10)
    net.load_parameters(str(run / PARAMETERS), ctx=device())
    assert net(mx.nd.zeros((1, 1, 28, 28), ctx=device())).shape == (1, 10)


def assert_whole(run):
    """Its checkpoint, lines and configuration can be read to their ends."""
    [checkpoint] = (run / "checkpoints").iterdir()
    assert read_newest_checkpoint(run).checkpoint.step == int(checkpoint.name[5:])
    metrics = (run / "metrics.jsonl").read_text()
    assert all(
        json.loads(line)["kind"] in ("step", "epoch", "event") and line.endswith("\n")
        for line in metrics.splitlines(keepends=True)
    )
    json.loads((run / "config.json").read_text())


def test_more_than_two_ctrl_c_act_as_two(tmp_path):
    words = ["--threads", "1", "--epochs", "1000", "--checkpoint-every", "5steps"]
    with real_process(tmp_path, *words, until="epoch +2/") as process:
        process.send_signal(signal.SIGSTOP)  # its files stay as they are meanwhile
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        before = read_newest_checkpoint(tmp_path / "run").checkpoint.step
        process.send_signal(signal.SIGCONT)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        err = process.stderr.read()
    # one that comes when Python has given its handlers back is the system's own end by it
    assert process.returncode in (130, -signal.SIGINT)
    assert_says_what_is_there(err, "interrupted")
    assert read_newest_checkpoint(tmp_path / "run").checkpoint.step >= before >= 40


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_end_of_the_first_step_ends_the_run_after_it(reported, sign):
    class SignalledEarly(Breaks):
        """Gets the signal when the run begins to tell what it will do."""

        sent = False

        def say(self, text):
            if not self.sent:
                self.sent = True
                os.kill(os.getpid(), sign)

    reporter = SignalledEarly(0, None)
    words = "--gpus 2 --model mlp --epochs 1000 --out run"
    status, err = reported(reporter, *words.split())
    assert (status, reporter.sent, reporter.left) == (128 + sign, True, -1)
    said = f"{WORDS[sign]}: no epoch was finished; run holds the steps of the first; {GO_ON}"
    assert err.splitlines()[-1] == said
    assert read_newest_checkpoint(Path("run")).checkpoint.step == 1
    assert_whole(Path("run"))
