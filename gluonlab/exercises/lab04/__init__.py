"""The exercises of lab 04: schedules, their faults and prices, and a ring by hand."""

from gluonlab.exercises.lab04 import guesses, prices, reduce_scatter, ring, wrong_transfers
from gluonlab.exercises.lab04.wrong_transfers import BROKEN

__all__ = ["BROKEN", "guesses", "prices", "reduce_scatter", "ring", "wrong_transfers"]
