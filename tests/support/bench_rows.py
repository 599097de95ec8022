"""Measurements that were never made, for the tests of the bench's tables."""

from gluonlab.bench.harness.rounds import Measurement, Subject


def measured(name, steps, seconds, reason=None, **more):
    """So many steps of 128 images in each round."""
    answers = [{"seconds": each, **more} for each in seconds]
    return Measurement(Subject(name, name, "job", images=128), answers, steps, reason)
