"""The labs' exercises: checkers of answers, whose verdicts are in English and in Japanese.

::

    from gluonlab.exercises import check, setup

    here = setup(2)               # two devices and a data set, whatever this machine has
    check("02-1", allreduce)      # the first counterexample in words, or that it is correct

and before each measurement a guess: `gluonlab.exercises.guesses`.

The checkers are in ``labNN/``, a package for each lab; what several labs use is in ``shared/``.
"""

from gluonlab.exercises.checking import check
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.guesses import because, observe, predict, surprises
from gluonlab.exercises.here import Here, setup
from gluonlab.exercises.languages import language
from gluonlab.exercises.verdict import Verdict

__all__ = [
    "Here",
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
