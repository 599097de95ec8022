"""06-2: one update from several microbatches."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.microbatches import check_updates, wrong_update


@exercise("06-2")
def accumulate(answer: Callable[..., Any]) -> None:
    """One update from several microbatches, the same as that of the whole batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 1), ((4,), 2), ((4, 4), 2), ((7,), 3)]
    for sizes, parts in [*cases, ((7, 5, 9), 3), ((3,), 3), ((11, 2, 8), 2)]:
        check_updates(answer, sizes, parts, wrong_update, as_even=True)
