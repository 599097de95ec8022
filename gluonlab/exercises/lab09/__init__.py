"""The exercises of lab 09: programs with a fault, and one with two.

While it is there the checkers name the symptom, not the cure.
"""

from gluonlab.exercises.lab09 import (
    allreduce,
    evaluation,
    guesses,
    hunt,
    idle_replica,
    replicas,
    updates,
)

__all__ = ["allreduce", "evaluation", "guesses", "hunt", "idle_replica", "replicas", "updates"]
