"""A reader that goes away ends no training; what only prints then ends without a word."""

import os
import pty
import subprocess
import sys

import pytest
from support.processes import clean_environment
from support.run_files import read_metrics

TRAINING = ["-m", "gluonlab.run", "--model", "mlp", "--epochs", "3", "--out", "run"]


def head(process):
    """``| head -1``"""
    first = process.stdout.readline()
    process.stdout.close()
    return first


def started(folder, *words, before=(), **more):
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(
        [*before, sys.executable, *words], cwd=folder, env=clean_environment(),
        stdin=subprocess.DEVNULL, encoding="utf-8", **more,
    )  # fmt: skip


def ended(process):
    """Its status and what it said on standard error, without warnings."""
    complaints = process.stderr.read().splitlines() if process.stderr else []
    process.wait(timeout=300)
    return process.returncode, [line for line in complaints if not line.startswith("warning: ")]


def finished(run, reason):
    metrics = read_metrics(run)
    assert [line["epoch"] for line in metrics if line["kind"] == "epoch"] == [1, 2, 3]
    said = [line["message"] for line in metrics if line.get("event") == "unheard"]
    assert said == [reason]


def test_a_training_whose_output_nobody_reads_goes_on(tmp_path):
    process = started(tmp_path, *TRAINING)
    assert head(process)
    assert ended(process) == (0, [])
    finished(tmp_path / "run", "Broken pipe")


@pytest.mark.long
def test_a_training_with_both_outputs_gone_goes_on(tmp_path):
    process = started(tmp_path, *TRAINING, stderr=subprocess.STDOUT)
    assert head(process)
    assert ended(process) == (0, [])
    finished(tmp_path / "run", "Broken pipe")


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_training_without_standard_output_goes_on(tmp_path, closed):
    shell = ["sh", "-c", f'exec "$0" "$@" {closed}']
    assert ended(started(tmp_path, *TRAINING, before=shell)) == (0, [])
    finished(tmp_path / "run", "it was closed from the start")
    assert all(line["kind"] for line in read_metrics(tmp_path / "run"))


@pytest.mark.long
def test_a_training_whose_terminal_is_closed_goes_on(tmp_path):
    ours, theirs = pty.openpty()
    process = started(tmp_path, *TRAINING, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.read(ours, 10)
    os.close(ours)
    assert ended(process) == (0, [])
    finished(tmp_path / "run", "Input/output error")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--help"],
        pytest.param(["run", "--list"], marks=pytest.mark.long),
        pytest.param(["doctor"], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_command_that_only_prints_ends_without_a_word(tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)  # gone before the first word
    process = started(tmp_path, "-m", f"gluonlab.{words[0]}", *words[1:], stdout=writing)
    os.close(writing)
    assert ended(process) == (141, [])  # as the shell says of cat
