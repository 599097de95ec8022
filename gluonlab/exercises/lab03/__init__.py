"""The exercises of lab 03: Trainer and kvstore, learning rates, BatchNorm, a step's time."""

from gluonlab.exercises.lab03 import comparison, guesses, planning, speedup, statistics, update

__all__ = ["comparison", "guesses", "planning", "speedup", "statistics", "update"]
