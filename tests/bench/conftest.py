"""For the tests of `gluonlab.bench`: its command in this process.

MXNet is imported where it is needed first, not when pytest starts.
"""

import functools

import pytest


@pytest.fixture
def short(monkeypatch):
    """Measure for a millisecond only: the times mean nothing."""
    from gluonlab.bench.harness import interleaved_rounds

    monkeypatch.setattr(interleaved_rounds, "BLOCK_S", 0.001)


@pytest.fixture
def bench(ended, monkeypatch, short):
    """Return ``bench("links", ...)`` -> (exit status, standard output, standard error)."""
    from gluonlab.bench.__main__ import main
    from gluonlab.bench.harness.machine_info import OtherProcessLoad

    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)
    return functools.partial(ended, main)


@pytest.fixture
def allreduce(ended, bench):
    """Return ``allreduce("bench", ...)`` -> (exit status, standard output, standard error)."""
    from gluonlab.allreduce import main

    return functools.partial(ended, main)
