"""Predict, observe, explain: a guess before a measurement, and why it came otherwise.

A guess has an id, such as ``"01-a"``, and is registered in ``labNN/guesses.py`` with the form of
its answer and its question in both languages::

    guess("01-a", number(0, 1, such_as=0.5, within=0.1), en="what fraction ...?", ja="...")

In the notebook it takes four calls, in this order and in cells of their own::

    predict("01-a", ...)                    # the learner replaces ...

    with observe("01-a", queued / done):    # what the block shows is held back without a guess
        print(f"queued after {queued:.3f} s")

    because("01-a", ...)                    # the learner says why, in words

    surprises()                             # at the end of the lab
"""

from gluonlab.exercises.guesses.forms import choice, each, listed, number, yes_or_no
from gluonlab.exercises.guesses.record import because, observe, predict, surprises
from gluonlab.exercises.guesses.register import guess

__all__ = [
    "because",
    "choice",
    "each",
    "guess",
    "listed",
    "number",
    "observe",
    "predict",
    "surprises",
    "yes_or_no",
]
