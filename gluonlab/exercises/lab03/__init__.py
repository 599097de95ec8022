"""The exercises of lab 03: updates by Trainer and kvstore, their number and rate, BatchNorm's
shards, and a model of a step's time.
"""

from gluonlab.exercises.lab03 import planning, speedup, statistics, update

__all__ = ["planning", "speedup", "statistics", "update"]
