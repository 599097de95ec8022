"""Made-up trainings of which it is known which learning rate is best."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple

from gluonlab.exercises.cases import more
from gluonlab.exercises.shared.counterexamples import Case, in_english, looks_like


class Landscape(NamedTuple):
    """Made-up trainings whose best rates are known: accuracy(global batch size, learning rate)."""

    case: Case
    accuracy: Callable[[int, float], float]
    ks: List[int]
    batch_per_device: int
    rates: List[float]


def landscapes() -> List[Landscape]:
    """The simplest first; the best rate lies inside the range, or at an end."""

    def tie(n: int, lr: float) -> float:
        return 0.7 - (lr > 0.2) / 5

    def two_peaks(n: int, lr: float) -> float:
        return {0.1: 0.8, 0.2: 0.6, 0.4: 0.7, 0.8: 0.9 if n > 32 else 0.85}[lr]

    grows, same = _peak(lambda n: 0.1 * n / 32), _peak(lambda n: 0.2)
    diverges, falling = _peak(lambda n: 0.2, 0.3), [0.8, 0.4, 0.2, 0.1]
    return [
        Landscape(Case("the best rate grows with the batch", "最適な学習率がバッチに比例する"),
                  grows, [1, 2, 4], 32, [0.05, 0.1, 0.2, 0.4]),
        Landscape(Case("the best rate is the same for all", "最適な学習率が変わらない"),
                  same, [1, 2], 64, falling),
        Landscape(Case("rates above 0.3 diverge", "0.3 より大きい学習率は発散する"),
                  diverges, [1, 2], 16, falling),
        Landscape(Case("two rates are equally good", "2 つの学習率が同じ正解率になる"),
                  tie, [2], 8, [0.2, 0.1, 0.4]),
        Landscape(Case("the accuracy falls, and rises again", "正解率が下がってからまた上がる"),
                  two_peaks, [1, 2], 32, [0.8, 0.1, 0.4, 0.2]),
        *more(3, _drawn),
    ]  # fmt: skip


def _peak(best: Callable[[int], float], limit: float = math.inf) -> Callable[[int, float], float]:
    return lambda n, lr: math.nan if lr > limit else 0.9 - 0.05 * abs(math.log2(lr / best(n)))


def _drawn(random: Any) -> Landscape:
    rates = (0.025 * 2.0 ** random.permutation(7)[:4]).tolist()
    best, ks = rates[random.randint(len(rates))], (1 + random.permutation(8)[:2]).tolist()
    case = Case(f"the best rate is {best:g}", f"最適な学習率は {best:g}")
    return Landscape(case, _peak(lambda n: best), ks, int(2 ** random.randint(2, 8)), rates)


def check_rates(got: Any, landscape: Landscape) -> None:
    """Raise Wrong unless ``got`` is {number of devices: its best rate}."""
    case, accuracy, ks, b, rates = landscape
    if not isinstance(got, dict) or sorted(got) != sorted(ks):
        raise case.wrong(
            f"it returned {got!r}: return a dictionary with a rate for each of {ks}",
            f"{got!r} が返りました。{ks} のそれぞれに学習率を持つ辞書を返してください",
        )
    for k in ks:
        accuracies = {lr: accuracy(k * b, lr) for lr in rates}
        highest = max(value for value in accuracies.values() if not math.isnan(value))
        want = min(lr for lr, value in accuracies.items() if value == highest)
        if got[k] == want:
            continue
        why = looks_like(
            (got[k] in accuracies.values(),
             "that is an accuracy: return its rate",
             "これは正解率です。その学習率を返してください"),
            (math.isnan(accuracies.get(got[k], 0)),
             "that training diverged. If a nan comes first, `max` returns it",
             "その学習は発散しています。先頭が nan だと `max` は nan を返します"),
            (accuracies.get(got[k]) == highest,
             "of equal accuracies take the smaller rate",
             "正解率が同じなら小さいほうの学習率を選んでください"),
        )  # fmt: skip
        table = ", ".join(f"{lr:g}: {value:.3g}" for lr, value in accuracies.items())
        raise case.wrong(
            f"on {in_english(k, 'device')} the accuracies are {table}; "
            f"you chose {got[k]!r}, expected {want:g}",
            f"{k} 台での正解率は {table} です。{got[k]!r} が選ばれましたが、正しくは {want:g} です",
            why,
        )
