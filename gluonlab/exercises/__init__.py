"""The labs' exercises: functions that check answers and report in English or Japanese.

::

    from gluonlab.exercises import check, setup

    here = setup(2)               # choose two devices and a data set on this machine
    check("02-1", allreduce)      # return the verdict: correct, or the first counterexample

Learners also guess the result of each measurement in advance (`gluonlab.exercises.guesses`). The
module ``labNN_TOPIC.py`` contains the checkers of lab NN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gluonlab.exercises.exercise_registry import Verdict, Wrong, check, exercise
from gluonlab.exercises.guesses import because, observe, predict, surprises
from gluonlab.exercises.languages import language

if TYPE_CHECKING:
    from gluonlab.exercises.lab_environment import LabEnvironment, setup

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


def __getattr__(name: str) -> Any:
    if name in ("LabEnvironment", "setup"):  # loaded at first use, because a browser has no devices and data sets
        from gluonlab.exercises import lab_environment

        return getattr(lab_environment, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
