"""What is fitted to published figures: `python tools/fit_prediction.py` prints these numbers."""

from __future__ import annotations

from typing import NamedTuple


class Constants(NamedTuple):
    """The constants of `roofline`, each with a physical meaning.

    ``convolution``: the share of a GPU's peak FLOP/s that matrix products and convolutions reach.
    ``memory``: the same of its memory's bytes/s. ``winograd``: how often fewer operations 3 x 3
    convolutions take, and ``winograd_5`` those of 5 x 5. ``tensor``: the share of tensor cores'
    peak. ``launch_s``: from one kernel to the next in training, MXNet's engine included, which
    takes 15 operators at a time; ``launch_inference_s``: in inference, where it takes all of them
    at once. ``outputs_per_core``: a convolution with so many results for each core is half as fast
    as one with very many. ``kepler`` and ``kepler_memory``: what a Kepler reaches of the two
    shares. ``update_s``: MXNet's own update of one parameter.
    """

    convolution: float
    memory: float
    winograd: float
    winograd_5: float
    tensor: float
    launch_s: float
    launch_inference_s: float
    outputs_per_core: float
    kepler: float
    kepler_memory: float
    update_s: float


class Host(NamedTuple):
    """How ``local`` sums: a CPU's bytes/s in sums and updates, and those of a GPU's copies."""

    pass_bytes_per_s: float
    copy_bytes_per_s: float


# What was expected before anything was fitted. The fit is drawn to it: a constant that the figures
# say little about stays plausible.
EXPECTED = Constants(0.75, 0.8, 2.0, 3.0, 0.4, 15e-6, 8e-6, 60.0, 0.6, 0.8, 36e-6)
FITTED = Constants(
    convolution=0.9403,
    memory=0.7895,
    winograd=1.355,
    winograd_5=2.680,
    tensor=0.4936,
    launch_s=15.93e-6,
    launch_inference_s=10.26e-6,
    outputs_per_core=115.4,
    kepler=0.5123,
    kepler_memory=0.5807,
    update_s=38.54e-6,
)
EXPECTED_THEN = Host(3e9, 5e9)
FITTED_THEN = Host(2.293e9, 4.830e9)  # MXNet of 2015 to 2017, on its users' machines
# MXNet 1.9.1 on two cores of an EPYC: (n + 1) times the gradients of ResNet-18, by the time that
# `bench gradients` measured for `local` on two CPU devices, 13.3 ms; copies as NCCL counts PCIe 3.0
MEASURED_NOW = Host(10.5e9, 12e9)
