"""The exercises of lab 04: schedules, their faults and prices, a ring by hand, and a better one."""

from gluonlab.exercises.lab04 import (
    beat_the_eight,
    guesses,
    prices,
    reduce_scatter,
    ring,
    wrong_transfers,
)
from gluonlab.exercises.lab04.beat_the_eight import BEAT_THE_EIGHT
from gluonlab.exercises.lab04.wrong_transfers import BROKEN

__all__ = [
    "BEAT_THE_EIGHT",
    "BROKEN",
    "beat_the_eight",
    "guesses",
    "prices",
    "reduce_scatter",
    "ring",
    "wrong_transfers",
]
