"""The exercises of lab 08: many processes."""

from gluonlab.exercises.lab08 import (
    evaluation,
    guesses,
    places,
    program,
    restart,
    sampler,
    staleness,
)

__all__ = ["evaluation", "guesses", "places", "program", "restart", "sampler", "staleness"]
