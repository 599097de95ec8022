"""Waiting for a cell: no longer than its notebook may take, and not for a process that is gone.

Real notebooks are run by make check-labs, where ipykernel and pyzmq are installed.
"""

import sys
from types import SimpleNamespace

import pytest

from gluonlab.errors import NotebookError
from gluonlab.exercises import run_submission
from gluonlab.exercises.run_submission import NotebookKernel, SubmittedCell

CELL = SubmittedCell("\nx = 1")


@pytest.fixture
def waits(monkeypatch):
    """The seconds of each wait for a message; none ever comes, and waiting moves the clock."""
    seconds, now = [], [1000.0]

    class Poller:
        def register(self, socket, event):
            pass

        def poll(self, milliseconds):
            seconds.append(milliseconds / 1000)
            now[0] += seconds[-1]
            return []

    monkeypatch.setitem(sys.modules, "zmq", SimpleNamespace(Poller=Poller, POLLIN=1))
    monkeypatch.setattr(run_submission, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return seconds


def silent(end, alive=lambda: True):
    """A kernel whose process says nothing; the clock begins at 1000 s."""
    channel = SimpleNamespace(socket=object())
    client = SimpleNamespace(execute=lambda source, allow_stdin: "1", shell_channel=channel, iopub_channel=channel)
    return NotebookKernel(SimpleNamespace(is_alive=alive), client, end, printed=1)


@pytest.mark.parametrize("seconds", [0.25, 1, 2.5, 60])
def test_a_cell_that_does_not_end_is_waited_for_as_long_as_it_may_take(waits, seconds):
    of_cell = silent(1000 + seconds)
    with pytest.raises(NotebookError, match=r"^cell 3 \(x = 1\): the cell did not finish in time$"):
        of_cell.run(CELL, 2)
    assert sum(waits) == seconds
    assert max(waits) <= 1  # between two looks at whether the process lives
    assert not of_cell.is_alive


def test_a_process_that_dies_is_noticed_at_the_next_look(waits):
    of_cell = silent(2000, alive=lambda: len(waits) < 3)
    with pytest.raises(NotebookError, match=r"^cell 1 \(x = 1\): the kernel died$"):
        of_cell.run(CELL, 0)
    assert len(waits) == 3
    assert not of_cell.is_alive
