"""The labs' exercises: checkers of answers, whose verdicts are in English and in Japanese.

::

    from gluonlab.exercises import check, setup

    here = setup(2)               # two devices and a data set, whatever this machine has
    check("02-1", allreduce)      # the first counterexample in words, or that it is correct

and before each measurement a guess: `gluonlab.exercises.guesses`.

The checkers are in ``labNN.py``, a module for each lab.
"""

from gluonlab.exercises.checkers import Verdict, Wrong, check, exercise
from gluonlab.exercises.guesses import because, observe, predict, surprises
from gluonlab.exercises.lab_environment import LabEnvironment, setup
from gluonlab.exercises.languages import language

__all__ = [
    "LabEnvironment",
    "Verdict",
    "Wrong",
    "because",
    "check",
    "exercise",
    "language",
    "observe",
    "predict",
    "setup",
    "surprises",
]
