"""07-3: the critical batch size, from steps to a target."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import is_not, returned
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

ROUNDS = 30  # of fits that are improved step by step
TOLERANCE = 1e-3  # of a fit; an iterative one is right, too

Pairs = Tuple[float, float]


@exercise("07-3")
def critical_batch(answer: Callable[..., Any]) -> None:
    """The fewest steps and the critical batch size that fit measured steps."""
    cases: List[Tuple[List[int], List[float]]] = [
        ([1, 9], [100.0, 20.0]),
        ([2, 8, 32, 128], [450.0, 150.0, 75.0, 56.25]),
        ([2, 8, 32, 128, 512], [630.0, 185.0, 77.0, 49.0, 41.0]),
    ]
    random = draws(74)
    for _ in range(8):
        count = int(random.randint(3, 9))
        sizes = sorted(random.permutation(11)[:count].tolist())
        fewest, critical = random.uniform(20, 2000), 2.0 ** random.uniform(1, 9)
        noise = np.exp(random.normal(0, 0.15, count))
        steps = [float(round(fewest * (1 + critical / 2**size) * each))
                 for size, each in zip(sizes, noise)]  # fmt: skip
        cases.append(([2**size for size in sizes], steps))
    found = results(lambda sizes, steps: _pair(answer(list(sizes), list(steps))), cases, _right)
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (sizes, steps), got, want = mistaken[0]
    call = f"critical_batch({sizes}, {_short(steps)})"
    if not (isinstance(got, tuple) and len(got) == 2):
        raise returned(got, call, "two numbers, (fewest, critical)", "2 つの数 (fewest, critical) ")
    raise is_not(call, _shown(got), _shown(want), explains(found, _alike, *MISTAKES))


def _pair(given: Any) -> Any:
    """Two floats, where there are two numbers; else what was given."""
    try:
        first, second = given
        return float(first), float(second)
    except (TypeError, ValueError):
        return given


def _line(sizes: Any, steps: Any, weights: Any) -> Pairs:
    """a and b of steps ~ a + b / size, by least squares of weighted differences."""
    columns = np.stack([weights, weights / sizes], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, weights * steps, rcond=None)
    return float(a), float(b)


def _fit(sizes: Sequence[float], steps: Sequence[float], power: float = 1.0) -> Pairs:
    """Of differences relative to steps**power."""
    n, s = np.asarray(sizes, float), np.asarray(steps, float)
    a, b = _line(n, s, s**-power)
    return a, b / a


def _right(sizes: Sequence[float], steps: Sequence[float]) -> Pairs:
    return _fit(sizes, steps)


def _alike(got: Any, want: Any) -> bool:
    is_pair = isinstance(got, tuple) and len(got) == 2
    return is_pair and bool(np.allclose(got, want, rtol=TOLERANCE, atol=0))


def _by(formula: Callable[[Any, Any], Optional[Pairs]]) -> Callable[..., bool]:
    def gives(sizes: List[int], steps: List[float], got: Any) -> bool:
        value = formula(np.asarray(sizes, float), np.asarray(steps, float))
        return value is not None and _alike(got, value)

    return gives


def _inverse(n: Any, s: Any) -> Pairs:
    """By the ratios of the measured steps to the curve's: the Gauss-Newton method."""
    x = np.stack([np.ones(len(n)), 1 / n], axis=1)
    curve = np.array(_line(n, s, 1 / s))
    for _ in range(ROUNDS):
        fitted = x @ curve
        curve = curve + np.linalg.lstsq(x * (s / fitted**2)[:, None], s / fitted - 1, rcond=None)[0]
    return float(curve[0]), float(curve[1] / curve[0])


def _by_former_fit(n: Any, s: Any) -> Pairs:
    """Fit differences relative to the steps of the previous fit, and repeat."""
    a, b = _line(n, s, 1 / s)
    for _ in range(ROUNDS):
        a, b = _line(n, s, 1 / (a + b / n))
    return a, b / a


def _images(n: Any, s: Any) -> Pairs:
    """A straight line through the images, sizes * steps ~ b + a sizes."""
    a, b = np.polyfit(n, n * s, 1)
    return float(a), float(b / a)


def _ends(n: Any, s: Any) -> Pairs:
    b = (s[0] - s[-1]) / (1 / n[0] - 1 / n[-1])
    a = s[0] - b / n[0]
    return float(a), float(b / a)


def _log(n: Any, s: Any) -> Pairs:
    slope, at = np.polyfit(np.log(n), np.log(s), 1)
    return float(np.exp(at)), float(slope)


MISTAKES: List[Mistake] = [
    (_by(lambda n, s: _fit(n, s)[::-1]),
     "the two are the wrong way round", "2 つの順番が逆です"),
    (_by(lambda n, s: (_fit(n, s)[0], _fit(n, s)[0] * _fit(n, s)[1])),
     "the second is the images that the smallest batches need: divide by the fewest steps",
     "2 つ目は、最小のバッチで必要な画像の枚数です。最小ステップ数で割ってください"),
    (_by(lambda n, s: _fit(n, s, power=0.0)),
     "that fits the steps themselves, so the small batches alone decide: "
     "divide each difference by the steps measured",
     "ステップ数そのものに当てはめているので、小さいバッチだけで決まってしまいます。"
     "差を、計測したそれぞれのステップ数で割ってください"),
    (_by(lambda n, s: _fit(n, s, power=0.5)),
     "each difference is divided by the square root of the steps, not by the steps",
     "差を、ステップ数ではなくその平方根で割っています"),
    *((_by(inverse),
       "the errors are the wrong way round: each is divided by the curve's steps, not by the steps "
       "measured",
       "相対誤差が逆です。計測したステップ数ではなく、曲線のステップ数で割っています")
      for inverse in (_inverse, _by_former_fit)),
    (_by(_images),
     "that fits the images, sizes times steps, so the large batches alone decide",
     "画像の枚数 (バッチサイズとステップ数の積) に当てはめているので、"
     "大きいバッチだけで決まってしまいます"),
    (_by(_ends), "that is the curve through the smallest and the largest batch alone",
     "これは最小と最大のバッチだけを通る曲線です"),
    (_by(lambda n, s: (float(s.min()), _fit(n, s)[1])),
     "the fewest steps are those of the curve, not the smallest that was measured",
     "最小ステップ数は曲線の値です。計測した中の最小ではありません"),
    (_by(_log), "that is a straight line in logarithms, a power law",
     "これは両対数グラフでの直線、つまりべき乗則です"),
]  # fmt: skip


def _short(steps: Sequence[float]) -> str:
    return "[" + ", ".join(f"{each:g}" for each in steps) + "]"


def _shown(pair: Pairs) -> str:
    return f"({pair[0]:.5g}, {pair[1]:.5g})"
