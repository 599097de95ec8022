"""Checkers are registered by the modules of their lab."""

import pytest

from gluonlab.errors import ExerciseError
from gluonlab.exercises.checking import EXERCISES, exercise


@pytest.mark.parametrize(
    ("module", "fits"),
    [
        ("lab98", True),
        ("lab98.sums", True),
        ("lab97.sums", False),
        ("lab9.sums", False),
        ("shared.sums", True),
    ],
)
def test_the_modules_of_a_lab_hold_its_exercises_alone(module, fits, monkeypatch):
    monkeypatch.delitem(EXERCISES, "98-1", raising=False)

    def checker(answer):
        """Any."""

    checker.__module__ = f"gluonlab.exercises.{module}"
    if fits:
        assert exercise("98-1")(checker) is checker
        del EXERCISES["98-1"]
    else:
        with pytest.raises(
            ExerciseError, match=f"names no exercise of gluonlab.exercises.{module}"
        ):
            exercise("98-1")(checker)
    assert "98-1" not in EXERCISES
