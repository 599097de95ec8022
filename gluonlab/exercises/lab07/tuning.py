"""07-4: the learning rate with the fewest steps, found without wasting any."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import (
    NUMBERS,
    Case,
    Pair,
    in_english,
    looks_like,
    near,
)

MOST_TRAININGS = 40


class Landscape(NamedTuple):
    """Made-up trainings: ``fewest`` steps at the rate ``best``, ``steeper`` times as many a factor
    of 2 away; with a rate above ``highest``, or in more than ``limit`` steps, never.
    """

    first: float
    best: float
    fewest: int
    steeper: float
    highest: float
    limit: int

    def steps(self, rate: float) -> float:
        """What a training takes; infinite if it never gets there."""
        if rate > self.highest * 1.001:
            return math.inf
        away = abs(math.log2(rate / self.best))
        return float(round(self.fewest * self.steeper**away))

    def table(self) -> Dict[float, float]:
        """The steps of all rates that matter, from one below the least to one above the largest."""
        ends = sorted([self.first, self.best])
        rates, rate = [], ends[0] / 2
        while rate < ends[1] * 3:
            rates.append(rate)
            rate *= 2
        return {rate: self.steps(rate) for rate in rates}

    def enough(self) -> int:
        """The steps that suffice, whichever direction is tried first."""
        return max(self._cost(2.0), self._cost(0.5))

    def _cost(self, factor: float) -> int:
        spent = fewest = int(self.steps(self.first))
        for direction in (factor, 1 / factor):
            rate = self.first * direction
            while True:
                steps = self.steps(rate)
                spent += int(min(steps, fewest))
                if steps >= fewest:
                    break
                fewest, rate = int(steps), rate * direction
        return spent

    def case(self) -> Case:
        """In words."""
        steps = ", ".join(
            f"{rate:g}: {'never' if math.isinf(count) else f'{count:.0f}'}"
            for rate, count in self.table().items()
        )
        return Case(
            f"first={self.first:g}, limit={self.limit}, steps with each rate {{{steps}}}",
            f"first={self.first:g}, limit={self.limit}, 各学習率でのステップ数 "
            f"{{{steps.replace('never', '達しない')}}}",
        )


@exercise("07-4")
def tune(answer: Callable[..., Any]) -> None:
    """The rate with the fewest steps to the target, without wasting steps."""
    cases = [
        Landscape(0.25, 0.25, 50, 2.0, 8.0, 400),
        Landscape(0.25, 0.5, 50, 2.0, 0.5, 300),
        Landscape(0.25, 2.0, 40, 1.5, 8.0, 500),
        Landscape(1.0, 0.125, 30, 1.6, 1.0, 900),
        Landscape(0.5, 0.5, 20, 3.0, 0.5, 2000),
    ]
    random = draws(73)
    for _ in range(8):
        away, above = int(random.randint(-4, 5)), int(random.randint(0, 3))
        best, fewest = 2.0 ** int(random.randint(-6, 1)), int(random.randint(20, 60))
        first, steeper = best * 2.0**away, float(random.uniform(1.3, 2.0))
        highest = max(first, best) * 2.0**above
        limit = round(fewest * steeper ** abs(away) * random.uniform(1.2, 4))
        cases.append(Landscape(first, best, fewest, steeper, highest, limit))
    for landscape in cases:
        _check(answer, landscape)


def _check(answer: Callable[..., Any], landscape: Landscape) -> None:
    case, spent = landscape.case(), 0
    tried: List[float] = []

    def steps_with(rate: float, most: float) -> Optional[int]:
        nonlocal spent
        tried.append(rate)
        places = math.log2(rate / landscape.first) if rate > 0 else math.nan
        case.check(
            (not math.isfinite(places) or abs(places - round(places)) > 1e-6,
             f"it tried the rate {rate:g}, which is not {landscape.first:g} doubled or halved "
             "repeatedly",
             f"学習率 {rate:g} を試しました。{landscape.first:g} の 2 倍、4 倍、…、2 分の 1、"
             "4 分の 1、… だけを試してください"),
            (len(tried) > MOST_TRAININGS,
             f"it has not stopped after {MOST_TRAININGS} trainings",
             f"{MOST_TRAININGS} 回学習しても終わりません"),
        )  # fmt: skip
        steps = landscape.steps(rate)
        most = min(most, landscape.limit)
        spent += int(min(steps, most))
        return int(steps) if steps <= most else None

    got = answer(steps_with, landscape.first, landscape.limit)
    if not near(got, landscape.best):
        raise case.wrong(
            f"it returned {got!r}, expected {landscape.best:g}",
            f"戻り値は {got!r} でした。正しくは {landscape.best:g} です",
            _why(got, landscape, tried),
        )
    enough = landscape.enough()
    if spent > enough:
        raise case.wrong(
            f"{landscape.best:g} is right, but {in_english(len(tried), 'training')} took "
            f"{spent} steps in all, and {enough} suffice: give a training no more steps than "
            "the best one so far took, and stop in a direction when a rate is no better",
            f"{landscape.best:g} は正しいのですが、{len(tried)} 回の学習に合計 {spent} ステップ"
            f"かかりました。{enough} で足ります。これまでの最良のステップ数を超える学習はさせず、"
            "よくならなくなったらその方向の探索をやめてください",
        )


def _why(got: Any, landscape: Landscape, tried: List[float]) -> Pair:
    is_number = isinstance(got, NUMBERS) and not isinstance(got, bool) and got > 0
    steps = landscape.steps(float(got)) if is_number else math.inf
    fewest = landscape.steps(landscape.best)
    if got is None:
        return "is `return` missing?", "`return` を忘れていませんか"
    if not is_number:
        return "return a rate", "学習率を返してください"
    return looks_like(
        (got == fewest, "that is a number of steps, return the rate",
         "これはステップ数です。学習率を返してください"),
        (math.isinf(steps), "that training never gets there", "その学習は目標に達しません"),
        (landscape.best not in tried,
         f"{landscape.best:g} was never tried", f"{landscape.best:g} を試していません"),
        (True, f"{got:g} takes {steps:g} steps, {landscape.best:g} takes {fewest:g}",
         f"{got:g} では {steps:g} ステップ、{landscape.best:g} では {fewest:g} ステップです"),
    )  # fmt: skip
