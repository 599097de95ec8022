"""The labs' exercises: functions that check answers and report in English or Japanese.

::

    from gluonlab.exercises import check, setup

    here = setup(2)               # choose two devices and a data set on this machine
    check("02-1", allreduce)      # return the verdict: correct, or the first counterexample

Learners also guess the result of each measurement in advance (`gluonlab.exercises.guesses`). The
module ``labNN_TOPIC.py`` contains the checkers of lab NN.
"""

from gluonlab.exercises.exercise_registry import Verdict, Wrong, check, exercise
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
