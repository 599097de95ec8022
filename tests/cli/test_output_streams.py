"""A reader that goes away ends no training; what only prints then ends without a word."""

import io
import os
import pty
import subprocess
import sys

import pytest
from support.processes import clean_environment
from support.run_files import read_metrics

from gluonlab.cli.output_streams import discard_output, reader_error

TRAINING = ["-m", "gluonlab.run", "--model", "mlp", "--epochs", "3", "--out", "run"]


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("silent", "stderr"),
    [([], subprocess.PIPE), ([], subprocess.STDOUT), (["--quiet"], subprocess.PIPE), (["--json"], subprocess.PIPE)],
)
def test_a_training_whose_output_nobody_reads_goes_on(tmp_path, silent, stderr):
    process = started(tmp_path, *TRAINING, *silent, stderr=stderr)
    assert silent or process.stdout.readline()  # as | head -1
    process.stdout.close()
    assert ended(process) == (0, [])
    finished(tmp_path / "run", "Broken pipe")


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("silent", [[], ["--quiet"]], ids=str)
def test_a_training_without_standard_output_goes_on(tmp_path, closed, silent):
    shell = ["sh", "-c", f'exec "$0" "$@" {closed}']
    assert ended(started(tmp_path, *TRAINING, *silent, before=shell)) == (0, [])
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


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty])
def test_a_reader_is_missed_when_writing_would_fail(opened):
    ours, theirs = opened()
    with open(theirs, "w") as stream:
        assert reader_error(stream) is None
        os.close(ours)
        with pytest.raises(OSError) as said:
            os.write(theirs, b"x")
        assert reader_error(stream) == said.value.strerror
        discard_output(stream)
        assert reader_error(stream) is None


def test_files_and_streams_in_memory_can_always_be_read(tmp_path):
    with open(tmp_path / "out", "w") as file:
        assert reader_error(file) is None
    assert reader_error(io.StringIO()) is None
