"""06-2 and 06-3: one update from several microbatches, and the weights of unequal ones."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, List, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import is_not, looks_like, returned
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results
from gluonlab.exercises.shared.microbatches import check_updates, wrong_update


@exercise("06-2")
def accumulate(answer: Callable[..., Any]) -> None:
    """One update from several microbatches, the same as that of the whole batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 1), ((4,), 2), ((4, 4), 2), ((7,), 3)]
    for sizes, parts in [*cases, ((7, 5, 9), 3), ((3,), 3), ((11, 2, 8), 2)]:
        check_updates(answer, sizes, parts, wrong_update, as_even=True)


@exercise("06-3")
def part_weights(answer: Callable[[List[int]], Sequence[float]]) -> None:
    """By what the mean losses of unequal parts must be multiplied."""
    cases = [[4], [4, 4], [3, 1], [25, 25, 14]]
    random = draws(3)
    cases += [random.randint(1, 40, random.randint(2, 7)).tolist() for _ in range(6)]
    found = results(
        lambda sizes: _as_list(answer(list(sizes))),
        [(sizes,) for sizes in cases],
        lambda sizes: [size / sum(sizes) for size in sizes],
    )
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (sizes,), got, want = mistaken[0]
    call = f"part_weights({sizes})"
    if not isinstance(got, list):
        raise returned(got, call, "a list with a factor for each part", "部分ごとの係数のリスト")
    why = looks_like(
        (len(got) != len(sizes), f"one weight for each of {len(sizes)} parts is wanted",
         f"{len(sizes)} 個の部分それぞれに重みが 1 個要ります"),
    )  # fmt: skip
    why = why if any(why) else explains(found, _alike, *OF_WEIGHTS)
    if not any(why) and not math.isclose(sum(got), 1, rel_tol=1e-6):
        total = f"{sum(got):.4g}"
        why = f"they add up to {total}, not to 1", f"合計が 1 ではなく {total} です"
    raise is_not(call, _short(got), _short(want), why)


def _as_list(given: Any) -> Any:
    return [float(weight) for weight in given] if isinstance(given, Iterable) else given


def _alike(got: Any, want: Sequence[float]) -> bool:
    return isinstance(got, list) and len(got) == len(want) and np.allclose(got, want, rtol=1e-6)


def _by(formula: Callable[[List[int]], Sequence[float]]) -> Callable[..., bool]:
    return lambda sizes, got: _alike(got, formula(sizes))


OF_WEIGHTS: List[Mistake] = [
    (_by(lambda sizes: [1] * len(sizes)),
     "the means are only added up, as in a loop without weights", "平均を足すだけになっています"),
    (_by(lambda sizes: [1 / len(sizes)] * len(sizes)),
     "so an image of a small part counts more than one of a large part",
     "小さい部分の画像ほど重く数えられます"),
    (_by(lambda sizes: sizes),
     "that gives the sum of all losses, not their mean",
     "それでは平均ではなく損失の総和になります"),
    (_by(lambda sizes: [size / max(sizes) for size in sizes]),
     "divide by the number of all images, not by that of the largest part",
     "最大の部分の枚数ではなく、全体の枚数で割ってください"),
    (_by(lambda sizes: [1 / size for size in sizes]),
     "a larger part must count more, not less", "大きい部分ほど重く数える必要があります"),
]  # fmt: skip


def _short(weights: Sequence[float]) -> str:
    return "[" + ", ".join(f"{weight:.4g}" for weight in weights) + "]"
