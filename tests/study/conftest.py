"""For the tests of `gluonlab.study`: its command in this process."""

import functools

import pytest


@pytest.fixture
def study(ended):
    """``study("scaling", ...)`` -> (exit status, standard output, standard error)."""
    from gluonlab.study.__main__ import main

    return functools.partial(ended, main)
