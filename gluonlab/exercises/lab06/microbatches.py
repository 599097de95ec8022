"""06-2 and 06-3: one update from several microbatches, and the weights of unequal ones."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Callable, Iterable, List, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import is_not, looks_like, returned
from gluonlab.exercises.shared.microbatches import check_updates, wrong_update


@exercise("06-2")
def accumulate(answer: Callable[..., Any]) -> None:
    """One update from several microbatches, the same as that of the whole batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 1), ((4,), 2), ((4, 4), 2), ((7,), 3)]
    for sizes, parts in [*cases, ((7, 5, 9), 3), ((3,), 3), ((11, 2, 8), 2)]:
        check_updates(answer, sizes, parts, wrong_update)


@exercise("06-3")
def part_weights(answer: Callable[[List[int]], Sequence[float]]) -> None:
    """By what the mean losses of unequal parts must be multiplied."""
    cases = [[4], [4, 4], [3, 1], [25, 25, 14]]
    random = draws(3)
    cases += [random.randint(1, 40, random.randint(2, 7)).tolist() for _ in range(6)]
    for sizes in cases:
        given, call, k = answer(list(sizes)), f"part_weights({sizes})", len(sizes)
        if not isinstance(given, Iterable):
            raise returned(
                given, call, "a list with a factor for each part", "部分ごとの係数のリスト"
            )
        got, want = [float(weight) for weight in given], [size / sum(sizes) for size in sizes]
        if len(got) == k and np.allclose(got, want, rtol=1e-6):
            continue
        share, as_many = Fraction(sizes[0], sizes[-1]), len(got) == k
        why = looks_like(
            (not as_many, f"one weight for each of {k} parts is wanted",
             f"{k} 個の部分それぞれに重みが 1 個要ります"),
            (as_many and np.allclose(got, [1] * k),
             "the means are only added up, as in a loop without weights",
             "平均を足すだけになっています"),
            (as_many and np.allclose(got, [1 / k] * k),
             f"so an image of the last part counts {share} times as much as one of the first",
             f"最後の部分の画像 1 枚が、最初の部分の 1 枚の {share} 倍に数えられます"),
            (as_many and np.allclose(got, sizes),
             "that gives the sum of all losses, not their mean",
             "それでは平均ではなく損失の総和になります"),
            (not math.isclose(sum(got), 1, rel_tol=1e-6),
             f"they add up to {sum(got):.4g}, not to 1", f"合計が 1 ではなく {sum(got):.4g} です"),
        )  # fmt: skip
        raise is_not(call, _short(got), _short(want), why)


def _short(weights: Sequence[float]) -> str:
    return "[" + ", ".join(f"{weight:.4g}" for weight in weights) + "]"
