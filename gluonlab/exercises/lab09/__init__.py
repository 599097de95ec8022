"""The exercises of lab 09: six programs with a fault.

While it is there the checkers name the symptom, not the cure.
"""

from gluonlab.exercises.lab09 import allreduce, evaluation, guesses, idle_replica, replicas, updates

__all__ = ["allreduce", "evaluation", "guesses", "idle_replica", "replicas", "updates"]
