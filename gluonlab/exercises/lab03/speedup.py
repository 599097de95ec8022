"""03-5: a model of a step's time, and the speed of several devices by it."""

from __future__ import annotations

from typing import Any, Callable, List

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, gave, near
from gluonlab.exercises.shared.diagnosis import Mistake, by, explains, results


@exercise("03-5")
def speedup(answer: Callable[[float, float, float, int], float]) -> None:
    """How many times the images per second k devices reach, by a model of a step."""
    rng = draws(3)
    cases = [(0.0, 1.0, 0.0, 2), (0.0, 1.0, 0.5, 1), (0.0, 1.0, 1.0, 2), (1.0, 0.0, 0.0, 2)]
    cases += [(1.0, 3.0, 1.0, 2), (1.0, 3.0, 1.0, 8)]
    for a, b, c in rng.uniform(0.1, 5, (50, 3)):
        cases.append((float(a), float(b), float(c), int(rng.randint(1, 17))))
    found = results(answer, cases, lambda h, c, s, k: k * max(h, c) / _step(h, c, s, k))
    mistaken = found.wrong(near)
    if mistaken:
        (host, compute, total, devices), got, want = mistaken[0]
        raise gave(
            f"speedup(host_ms={host:.3g}, compute_ms={compute:.3g}, sum_ms={total:.3g}, "
            f"devices={devices})",
            f"{got:.4g}" if isinstance(got, NUMBERS) else repr(got),
            f"{want:.4g}",
            explains(found, near, *OF_SPEEDUPS),
        )


def _step(host: float, compute: float, total: float, devices: int) -> float:
    """The time of a step on so many devices."""
    return max(devices * host, compute + total) if devices > 1 else max(host, compute)


def _with(formula: Callable[..., float], en: str, ja: str) -> Mistake:
    """The mistake of a formula, whether or not the answer knows that one device sums nothing."""

    def gives(host: float, compute: float, total: float, devices: int, got: Any) -> bool:
        sums = (total, 0.0 if devices == 1 else total)
        return any(by(formula)(host, compute, sum_ms, devices, got=got) for sum_ms in sums)

    return gives, en, ja


OF_SPEEDUPS: List[Mistake] = [
    (by(lambda h, c, s, k: k * max(h, c) / max(k * h, c + s)),
     "one device has nothing to sum, and is as fast as itself",
     "1 台なら合計は要らず、倍率はちょうど 1 です"),
    _with(lambda h, c, s, k: max(h, c) / max(k * h, c + s),
          "a step on k devices trains on k times the images",
          "k 台の 1 ステップは k 倍の枚数を処理します"),
    _with(lambda h, c, s, k: max(k * h, c + s) / max(h, c),
          "that is how many times as long a step takes: divide the other way round, "
          "and count k times the images",
          "これは 1 ステップの時間が何倍になるかです。"
          "割る向きを逆にし、枚数が k 倍になることも計算に入れてください"),
    _with(lambda h, c, s, k: k * max(h, c) / max(h, c + s),
          "the host queues the work of one device after the other",
          "ホストはデバイス 1 台ずつ順に処理をキューに入れます"),
    _with(lambda h, c, s, k: k * (h + c) / (k * h + c + s),
          "the host queues the next step while the devices compute",
          "デバイスの計算中に、ホストは次のステップをキューに入れられます"),
    _with(lambda h, c, s, k: k * max(h, c) / (k * h + c + s),
          "the host queues the next step while the devices compute",
          "デバイスの計算中に、ホストは次のステップをキューに入れられます"),
    _with(lambda h, c, s, k: k * max(h, c) / (max(k * h, c) + s),
          "the devices sum after they have computed, and the host is free meanwhile",
          "合計は計算の後にデバイスが行い、その間ホストは空いています"),
    _with(lambda h, c, s, k: k * max(h, c) / max(k * h, c),
          "the sum is missing, which begins when the gradients are ready",
          "勾配がそろってから始まる合計の時間が入っていません"),
]  # fmt: skip
