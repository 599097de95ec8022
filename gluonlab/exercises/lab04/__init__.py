"""The exercises of lab 04: schedules, what is wrong with some, how busy a link is, which allreduce
is fastest, and a ring.
"""

from gluonlab.exercises.lab04 import prices, reduce_scatter, ring, wrong_transfers
from gluonlab.exercises.lab04.wrong_transfers import BROKEN

__all__ = ["BROKEN", "prices", "reduce_scatter", "ring", "wrong_transfers"]
