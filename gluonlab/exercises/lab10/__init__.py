"""The exercises of lab 10: eight schedule puzzles."""

from gluonlab.exercises.lab10 import checkers, guesses
from gluonlab.exercises.lab10.puzzles import PUZZLES

__all__ = ["PUZZLES", "checkers", "guesses"]
