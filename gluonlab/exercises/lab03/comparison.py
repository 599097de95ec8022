"""03-2: two runs side by side, after equal epochs, equal updates and equal seconds."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, returned, wrong
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

CLOCKS = ("epochs", "updates", "seconds")
TOLERANCE = 1e-6

Run = List[Tuple[int, float, float]]  # of each epoch: updates so far, its seconds, accuracy
Difference = Optional[float]
Curve = Tuple[Sequence[float], Sequence[float]]  # places on a clock, and the accuracies there


@exercise("03-2")
def compare(answer: Callable[[Run, Run], Dict[str, Difference]]) -> None:
    """Two runs compared after equal epochs, equal updates and equal seconds."""
    random = draws(2)
    cases: List[Tuple[Run, Run]] = [
        ([(10, 2.0, 0.5), (20, 2.0, 0.7)], [(5, 1.5, 0.4), (10, 1.5, 0.6), (15, 1.5, 0.65)]),
        ([(4, 1.0, 0.3)], [(4, 1.0, 0.5)]),
        ([(4, 1.0, 0.3), (8, 1.0, 0.6)], [(4, 1.0, 0.5), (8, 1.0, 0.4)]),
        ([(100, 9.0, 0.8), (200, 9.0, 0.9)], [(5, 1.0, 0.2), (10, 1.0, 0.4)]),
        ([(5, 1.0, 0.2), (10, 1.0, 0.4)], [(100, 9.0, 0.8)]),
        ([(5, 1.0, 0.2), (10, 2.0, 0.5), (15, 4.0, 0.6)], [(5, 1.5, 0.3), (10, 2.5, 0.4)]),
    ]
    cases += [(_some_run(random), _some_run(random)) for _ in range(20)]
    found = results(
        lambda first, second: answer(list(first), list(second)),
        cases,
        lambda a, b: _by(a, b, RIGHT),
    )
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (first, second), got, want = mistaken[0]
    call = f"compare({_shown(first)}, {_shown(second)})"
    if not isinstance(got, dict) or set(got) != set(CLOCKS):
        names = ", ".join(f'"{clock}"' for clock in CLOCKS)
        raise returned(got, call, f"a dictionary with {names}", f"キーが {names} の辞書")
    clock = next(clock for clock in CLOCKS if not _same(got[clock], want[clock]))
    ours, right = _number(got[clock]), _number(want[clock])
    why = explains(found, _alike, *OF_COMPARISONS)
    raise wrong(
        f'{call}["{clock}"] is {ours}, expected {right}',
        f'{call}["{clock}"] は {ours} でしたが、正しくは {right} です',
        why,
    )


class _Way(NamedTuple):
    """How to compare; the mistakes differ from the right one in one thing each."""

    at: Callable[[Curve, float], Difference]
    seconds: Callable[[Sequence[float]], Sequence[float]] = lambda each: list(accumulate(each))
    sign: float = 1.0


def _between(curve: Curve, place: float) -> Difference:
    """The accuracy on the straight line between two measurements; None before the first."""
    places, accuracies = curve
    if place < places[0]:
        return None
    return float(np.interp(place, places, accuracies))


def _flat_before(curve: Curve, place: float) -> Difference:
    return float(np.interp(place, *curve))


def _from_zero(curve: Curve, place: float) -> Difference:
    places, accuracies = curve
    return float(np.interp(place, [0.0, *places], [0.0, *accuracies]))


def _before(curve: Curve, place: float) -> Difference:
    known = [accuracy for at, accuracy in zip(*curve) if at <= place]
    return known[-1] if known else None


def _after(curve: Curve, place: float) -> Difference:
    return next(accuracy for at, accuracy in zip(*curve) if at >= place)


def _after_or_none(curve: Curve, place: float) -> Difference:
    return _after(curve, place) if place >= curve[0][0] else None


def _nearest(curve: Curve, place: float) -> Difference:
    places, accuracies = curve
    if place < places[0]:
        return None
    return accuracies[int(np.argmin([abs(at - place) for at in places]))]


def _last(curve: Curve, place: float) -> Difference:
    return curve[1][-1]


def _by(first: Run, second: Run, way: _Way) -> Dict[str, Difference]:
    found: Dict[str, Difference] = {}
    for clock in CLOCKS:
        curves = [(_places(run, clock, way), [one[2] for one in run]) for run in (first, second)]
        end = min(curves[0][0][-1], curves[1][0][-1])
        before, after = (way.at(curve, end) for curve in curves)
        both = before is not None and after is not None
        found[clock] = way.sign * (after - before) if both else None  # type: ignore[operator]
    return found


def _places(run: Run, clock: str, way: _Way) -> Sequence[float]:
    if clock == "epochs":
        return [float(number + 1) for number in range(len(run))]
    if clock == "updates":
        return [float(updates) for updates, _, _ in run]
    return way.seconds([seconds for _, seconds, _ in run])


RIGHT = _Way(_between)


def _mistake(way: _Way, en: str, ja: str) -> Mistake:
    return lambda first, second, got: _alike(got, _by(first, second, way)), en, ja


OF_COMPARISONS: List[Mistake] = [
    _mistake(_Way(_between, sign=-1.0),
             "the second run's accuracy minus the first's, not the other way round",
             "2 番目の学習の正解率から 1 番目を引きます。逆になっています"),
    _mistake(_Way(_last),
             "those are the last accuracies of both, wherever each of them ended",
             "どこで終わったかに関係なく、両方の最後の正解率を比べています"),
    (lambda first, second, got: _each_alone(first, second, got),
             "the seconds are those of each epoch alone: add them up",
             "秒数はエポックごとの値です。足していってください"),
    _mistake(_Way(_before),
             "between two measurements the accuracy grows evenly: it does not wait for the next",
             "2 つの計測の間では正解率は一定の割合で増えます。次の計測までそのままではありません"),
    *(_mistake(_Way(next_one),
               "between two measurements the accuracy grows evenly: "
               "it has not reached the next yet",
               "2 つの計測の間では正解率は一定の割合で増えます。まだ次の計測の値にはなっていません")
      for next_one in (_after, _after_or_none)),
    _mistake(_Way(_nearest),
             "between two measurements the accuracy grows evenly: "
             "take the value in between, not the nearest measurement",
             "2 つの計測の間では正解率は一定の割合で増えます。最も近い計測値ではありません"),
    _mistake(_Way(_flat_before),
             "before its first measurement a run has no accuracy: None",
             "最初の計測より前の正解率は分からないので、None です"),
    _mistake(_Way(_from_zero),
             "before its first measurement a run has no accuracy: None, not 0",
             "最初の計測より前の正解率は分かりません。0 と計測されたわけではありません"),
]  # fmt: skip


def _each_alone(first: Run, second: Run, got: Any) -> bool:
    """Whether the seconds of an epoch are taken for those since the beginning.

    Where they do not rise, what that gives depends on how the answer looks for its place.
    """
    want, mistaken = (_by(first, second, way) for way in (RIGHT, _Way(_between, lambda s: s)))
    if not isinstance(got, dict) or set(got) != set(CLOCKS):
        return False
    rise = all(a[1] < b[1] for run in (first, second) for a, b in zip(run, run[1:]))
    others = all(_same(got[clock], want[clock]) for clock in CLOCKS[:2])
    return others and (not rise or _same(got["seconds"], mistaken["seconds"]))


def _some_run(random: Any) -> Run:
    epochs, updates = int(random.randint(1, 7)), int(random.randint(3, 40))
    seconds = 0.5 * random.randint(1, 12, epochs)
    accuracies = 0.01 * np.sort(random.choice(90, epochs, replace=False))
    if random.randint(2):
        random.shuffle(accuracies)  # accuracies also fall
    return [
        (updates * (number + 1), float(s), round(float(a), 2))
        for number, (s, a) in enumerate(zip(seconds, accuracies))
    ]


def _same(got: Any, want: Difference) -> bool:
    if want is None or got is None:
        return got is want
    return isinstance(got, NUMBERS) and abs(got - want) < TOLERANCE


def _alike(got: Any, want: Dict[str, Difference]) -> bool:
    keys = isinstance(got, dict) and set(got) == set(CLOCKS)
    return keys and all(_same(got[clock], want[clock]) for clock in CLOCKS)


def _shown(run: Run) -> str:
    return "[" + ", ".join(f"({u}, {s:g}, {a:g})" for u, s, a in run) + "]"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, NUMBERS) else repr(value)
