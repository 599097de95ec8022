"""Fake results of `gluonlab.bench allreduce` and `gradients`, and a wrong schedule."""

from dataclasses import replace

from gluonlab.bench.allreduce.measure_allreduce import CHOICES, AllreduceRow
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE
from support.devices import CHOICE

# All algorithms that run on the devices of the tests without a topology.
AVAILABLE_ALGORITHMS = {
    name for name in CHOICES if name not in TOPOLOGY_AWARE and (name != "nccl" or CHOICE.requested_kind == "gpu")
}
ALLREDUCE_ROW = AllreduceRow(
    "ring",
    4,
    4096,
    1024,
    "float32",
    1,
    (0.002, 0.001, 0.004),
    0.0,
    0.0005,
    (0.0005, 0.0005, 0.002),
    lower_bound_s=0.00025,
)
RING = ALGORITHMS["ring"]


def ring_without_last_transfer(world_size, *, chunks=None, groups=None):
    """Return a ring schedule without its last copy, so that the last device lacks a sum."""
    ring = RING(world_size)
    return replace(ring, steps=(*ring.steps[:-1], ring.steps[-1][:-1]))


def make_measurement(name, steps, seconds, reason=None, **more):
    """Return a measurement of rounds of some steps of 128 images; ``seconds``: for each round."""
    answers = [{"seconds": round_seconds, **more} for round_seconds in seconds]
    return Measurement(Subject(name, name, "job", images=128), answers, steps, reason)
