"""For the tests of tools/benchmarks: its command in this process."""

import functools

import pytest


@pytest.fixture
def bench(ended, monkeypatch):
    """``bench("peers", ...)`` -> (exit status, standard output, standard error) of the command, in
    this process. What is measured with it is not to be trusted, only the rest.
    """
    from benchmarks.__main__ import main
    from gluonlab.bench.harness import interleaved_rounds
    from gluonlab.bench.harness.machine_info import OtherProcessLoad

    monkeypatch.setattr(interleaved_rounds, "BLOCK_S", 0.001)
    # a busy machine is no fault of the command
    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)
    return functools.partial(ended, main)
