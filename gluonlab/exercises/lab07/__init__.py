"""The exercises of lab 07: batch size, steps to a target, learning rates, time."""

from gluonlab.exercises.lab07 import (
    critical,
    curves,
    guesses,
    momentum,
    prices,
    training,
    tuning,
)

__all__ = ["critical", "curves", "guesses", "momentum", "prices", "training", "tuning"]
