"""07-2: the steps to a target, of the median seed; some never get there."""

from __future__ import annotations

import math
from statistics import mean, median
from typing import Any, Callable, List, Optional, Sequence, Tuple

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, gave
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

Curve = List[Tuple[int, float]]  # (steps, share of validation images that is right)


@exercise("07-2")
def median_steps(answer: Callable[..., Any]) -> None:
    """How many steps the median seed takes to a target; None if it does not get there."""
    cases: List[Tuple[List[Curve], float]] = [
        ([[(10, 0.5), (20, 0.9)]], 0.8),
        ([[(10, 0.5), (20, 0.9), (30, 0.7), (40, 0.95)]], 0.9),
        ([[(10, 0.5), (20, 0.8)], [(10, 0.8)], [(10, 0.1), (20, 0.2), (40, 0.85)]], 0.8),
        ([[(5, 0.9), (10, 0.6)], [(5, 0.2), (15, 0.9)], [(5, 0.2), (20, 0.9)]], 0.8),
        ([[(5, 0.5), (10, 0.9)], [(5, 0.9)]], 0.9),
        ([[(8, 0.9)], [(8, 0.2), (16, 0.3)], [(8, 0.4), (16, 0.9)]], 0.9),
        ([[(8, 0.9)], [(8, 0.2), (16, 0.3)], [(8, 0.4), (16, 0.5)]], 0.9),
        ([[(8, 0.9)], [(8, 0.2), (16, 0.3)]], 0.9),
        ([[(8, 0.2), (16, 0.3)]], 0.9),
    ]
    random = draws(72)
    for _ in range(12):
        seeds = [_curve(random) for _ in range(random.randint(1, 8))]
        cases.append((seeds, round(float(random.uniform(0.5, 0.9)), 2)))
    found = results(
        lambda curves, target: answer([list(curve) for curve in curves], target), cases, _right
    )
    mistaken = found.wrong(_is)
    if mistaken:
        (curves, target), got, want = mistaken[0]
        raise gave(
            f"median_steps({curves}, {target})",
            repr(got), want, _of_kind(got) or explains(found, _is, *MISTAKES),
        )  # fmt: skip


def _curve(random: Any) -> Curve:
    """Rises, with noise, to somewhere between 0.4 and 1; it may fall again."""
    step, right, top, points = 0, 0.1, random.uniform(0.4, 1.0), []
    for _ in range(random.randint(3, 7)):
        step += int(random.randint(1, 20))
        right += (top - right) * random.uniform(0.1, 0.9)
        points.append((step, round(float(right - abs(random.normal(0, 0.06))), 2)))
    return points


def _reached(curve: Curve, target: float) -> float:
    return next((step for step, right in curve if right >= target), math.inf)


def _right(curves: Sequence[Curve], target: float) -> Optional[float]:
    return _finite(median(_reached(curve, target) for curve in curves))


def _for_good(curve: Curve, target: float) -> float:
    """From where on it stays."""
    step = math.inf
    for at, right in reversed(curve):
        if right < target:
            break
        step = at
    return step


def _interpolated(curve: Curve, target: float) -> float:
    before: "Optional[Tuple[int, float]]" = None
    for step, right in curve:
        if right >= target:
            if before is None:
                return step
            return before[0] + (step - before[0]) * (target - before[1]) / (right - before[1])
        before = step, right
    return math.inf


def _finite(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def _is(got: Any, want: Optional[float]) -> bool:
    if want is None:
        return got is None
    return isinstance(got, NUMBERS) and not isinstance(got, bool) and bool(got == want)


def _of_kind(got: Any) -> "Optional[Tuple[str, str]]":
    """What is said of an infinite number, whatever the case."""
    if isinstance(got, NUMBERS) and math.isinf(got):
        return "return None where there is no number", "数がないときは None を返してください"
    return None


def _by(formula: Callable[[List[Curve], float], Any]) -> Callable[..., bool]:
    def gives(curves: List[Curve], target: float, got: Any) -> bool:
        try:
            return _is(got, formula(curves, target))
        except (ValueError, IndexError):  # no number where none has reached it
            return False

    return gives


def _all(of: Callable[[Curve, float], float]) -> Callable[[List[Curve], float], Any]:
    return lambda curves, target: _finite(median(of(curve, target) for curve in curves))


def _some(curves: List[Curve], target: float) -> List[float]:
    return [each for each in (_reached(curve, target) for curve in curves) if math.isfinite(each)]


def _place(curves: List[Curve], target: float, high: bool) -> Optional[float]:
    steps = sorted(_reached(curve, target) for curve in curves)
    return _finite(steps[len(steps) // 2 if high else (len(steps) - 1) // 2])


MISTAKES: List[Mistake] = [
    (_by(lambda curves, target: median(_some(curves, target)) if _some(curves, target) else None),
     "seeds that never reach the target are left out, so hopeless settings look good: "
     "they take longer than all others",
     "目標に達しないシードが除かれています。それでは見込みのない設定がよく見えます。"
     "ほかのどのシードよりも長くかかるものとして数えてください"),
    (_by(lambda curves, target: None if len(_some(curves, target)) < len(curves)
         else median(_some(curves, target))),
     "one seed that never gets there does not keep the median seed from getting there",
     "達しないシードが 1 つあっても、中央値のシードが達していれば答えは数です"),
    (_by(_all(lambda curve, target: min(_reached(curve, target), curve[-1][0]))),
     "a seed that never reaches the target counts as if it had at its last look",
     "目標に達しないシードを、最後の計測で達したものとして数えています"),
    (_by(_all(lambda curve, target: next((s for s, r in curve if r > target), math.inf))),
     "the target itself is enough", "ちょうど目標の値でも達したことになります"),
    (_by(lambda curves, target: _finite(mean(_reached(curve, target) for curve in curves))),
     "that is the mean, which a single seed spoils",
     "これは平均です。1 つのシードで大きく変わります"),
    (_by(lambda curves, target: mean(_some(curves, target)) if _some(curves, target) else None),
     "that is the mean of the seeds that reach the target", "これは目標に達したシードの平均です"),
    (_by(lambda curves, target: _place(curves, target, True)),
     "of an even number of seeds the median is the mean of the middle two",
     "シードが偶数個なら、中央値は中央の 2 つの平均です"),
    (_by(lambda curves, target: _place(curves, target, False)),
     "of an even number of seeds the median is the mean of the middle two",
     "シードが偶数個なら、中央値は中央の 2 つの平均です"),
    (_by(_all(lambda curve, target: next(
        (n for n, (_, r) in enumerate(curve) if r >= target), math.inf))),
     "that is the place of the look, not its steps",
     "それは何番目の計測かで、ステップ数ではありません"),
    (_by(_all(lambda curve, target: next(
        (n for n, (_, r) in enumerate(curve, 1) if r >= target), math.inf))),
     "that is a number of looks, not of steps",
     "それは計測の回数で、ステップ数ではありません"),
    (_by(_all(_for_good)),
     "a seed is there at its first look that has the target, even if it falls below it again",
     "最初に目標以上になった計測で達したとします。その後で下回ってもかまいません"),
    (_by(_all(_interpolated)),
     "between two looks nobody has looked: the first that has the target counts",
     "計測と計測の間は測っていません。目標以上になった最初の計測のステップ数です"),
    (_by(_all(lambda curve, target: _reached(curve[::-1], target))),
     "the last look that has the target counts, not the first",
     "最初ではなく、最後に目標に達していた計測を数えています"),
    (_by(lambda curves, target: _finite(min(_reached(curve, target) for curve in curves))),
     "that is the fastest seed", "これは最も速いシードです"),
]  # fmt: skip
