"""A closed output does not end a training; a command that only prints then exits silently."""

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


def start(folder, *words, before=(), **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
    command = [*before, sys.executable, *words]
    return subprocess.Popen(command, cwd=folder, env=clean_environment(), encoding="utf-8", **options)


def wait_for(process):
    """Return the status and the lines on standard error, without warnings."""
    lines = process.stderr.read().splitlines() if process.stderr else []
    process.wait(timeout=300)
    return process.returncode, [line for line in lines if not line.startswith("warning: ")]


def check_finished(run, reason):
    metrics = read_metrics(run)
    assert [line["epoch"] for line in metrics if line["kind"] == "epoch"] == [1, 2, 3]
    assert [line["message"] for line in metrics if line.get("event") == "unheard"] == [reason]


@pytest.mark.long
@pytest.mark.parametrize(
    ("silent", "stderr"),
    [([], subprocess.PIPE), ([], subprocess.STDOUT), (["--quiet"], subprocess.PIPE), (["--json"], subprocess.PIPE)],
)
def test_a_training_without_a_reader_continues(tmp_path, silent, stderr):
    process = start(tmp_path, *TRAINING, *silent, stderr=stderr)
    assert silent or process.stdout.readline()  # as | head -1
    process.stdout.close()
    assert wait_for(process) == (0, [])
    check_finished(tmp_path / "run", "Broken pipe")


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("silent", [[], ["--quiet"]], ids=str)
def test_a_training_without_standard_output_continues(tmp_path, closed, silent):
    shell = ["sh", "-c", f'exec "$0" "$@" {closed}']
    assert wait_for(start(tmp_path, *TRAINING, *silent, before=shell)) == (0, [])
    check_finished(tmp_path / "run", "it was already closed at the start")
    assert all(line["kind"] for line in read_metrics(tmp_path / "run"))


@pytest.mark.long
def test_a_training_whose_terminal_is_closed_continues(tmp_path):
    ours, theirs = pty.openpty()
    process = start(tmp_path, *TRAINING, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.read(ours, 10)
    os.close(ours)
    assert wait_for(process) == (0, [])
    check_finished(tmp_path / "run", "Input/output error")


OTHER_COMMANDS = [pytest.param(words, marks=pytest.mark.long) for words in (["list"], ["doctor"])]


@pytest.mark.parametrize("words", [["run", "--help"], *OTHER_COMMANDS], ids=str)
def test_a_command_that_only_prints_exits_silently(tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)  # gone before the first word
    process = start(tmp_path, "-m", "gluonlab", *words, stdout=writing)
    os.close(writing)
    assert wait_for(process) == (141, [])  # as the shell says of cat


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty])
def test_a_missing_reader_has_the_error_of_a_write(opened):
    ours, theirs = opened()
    with open(theirs, "w") as stream:
        assert reader_error(stream) is None
        os.close(ours)
        with pytest.raises(OSError) as error:
            os.write(theirs, b"x")
        assert reader_error(stream) == error.value.strerror
        discard_output(stream)
        assert reader_error(stream) is None


def test_files_and_streams_in_memory_can_always_be_read(tmp_path):
    with open(tmp_path / "out", "w") as file:
        assert reader_error(file) is None
    assert reader_error(io.StringIO()) is None
