"""The random cases of the checkers: the same for every student, others where a seed is given.

A checker draws them from `draws`, and a list that is written down in it is followed by `more`::

    for size in [2, 3, 4, *more(3, lambda random: int(random.randint(5, 13)))]:

While students work there is no seed, and they see every case. Who grades gives one (`other_cases`):
an answer that was written for the cases that it has seen then fails.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Sequence, TypeVar, Union

import numpy as np

if TYPE_CHECKING:
    from numpy.random import RandomState

SEED = "GLUONLAB_CASES"  # the environment's variable that holds the seed, where one grades
LARGEST_SEED = 2**32 - 1  # that numpy takes

T = TypeVar("T")
_seed: Optional[int] = None


def draws(number: Union[int, Sequence[int]]) -> "RandomState":
    """The generator of a checker's cases; ``number`` is the checker's own."""
    if _seed is None:
        return np.random.RandomState(number)
    own = list(number) if isinstance(number, Sequence) else [number]
    return np.random.RandomState([*own, _seed])


def more(count: int, draw: "Callable[[RandomState], T]", number: int = 0) -> List[T]:
    """``count`` more cases where there is a seed, none where a student works."""
    random = draws([number, 1])
    return [draw(random) for _ in range(0 if _seed is None else count)]


@contextmanager
def other_cases(seed: int) -> Iterator[None]:
    """Draw other cases in this block."""
    global _seed
    before, _seed = _seed, seed
    try:
        yield
    finally:
        _seed = before


def seed_of_grader() -> Optional[int]:
    """The seed that the grader has given to this process, if it has."""
    text = os.environ.get(SEED, "")
    return int(text) if text.isdigit() and int(text) <= LARGEST_SEED else None
