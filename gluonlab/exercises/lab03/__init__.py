"""The exercises of lab 03: Trainer and kvstore, learning rates, BatchNorm, a step's time."""

from gluonlab.exercises.lab03 import guesses, planning, speedup, statistics, update

__all__ = ["guesses", "planning", "speedup", "statistics", "update"]
