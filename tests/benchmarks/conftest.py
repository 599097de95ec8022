"""For the tests of tools/benchmarks: its command in this process."""

import functools

import pytest


@pytest.fixture
def bench(ended, monkeypatch):
    """Return ``bench("frameworks", ...)`` -> (exit status, output, error). Times mean nothing."""
    from benchmarks.__main__ import main
    from gluonlab.bench.harness import interleaved_rounds
    from gluonlab.bench.harness.machine_info import OtherProcessLoad

    monkeypatch.setattr(interleaved_rounds, "BLOCK_S", 0.001)
    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)
    return functools.partial(ended, main)
