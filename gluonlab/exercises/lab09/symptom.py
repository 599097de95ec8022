"""What is said while the fault that an exercise is about is still there."""

from __future__ import annotations

from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.shared.counterexamples import Case

STILL = Case("the fault is still there", "まだ直っていません")


def still(en: str, ja: str) -> Wrong:
    """The symptom, not the cure."""
    return STILL.wrong(en, ja)
