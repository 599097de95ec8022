"""03-5: a model of a step's time, and the speed of several devices by it."""

from __future__ import annotations

from typing import Any, Callable

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, Pair, gave, looks_like, near


@exercise("03-5")
def speedup(answer: Callable[[float, float, float, int], float]) -> None:
    """How many times the images per second k devices reach, by a model of a step."""
    rng = draws(3)
    cases = [(0.0, 1.0, 0.0, 2), (0.0, 1.0, 0.5, 1), (0.0, 1.0, 1.0, 2), (1.0, 0.0, 0.0, 2)]
    cases += [(1.0, 3.0, 1.0, 2), (1.0, 3.0, 1.0, 8)]
    for a, b, c in rng.uniform(0.1, 5, (50, 3)):
        cases.append((float(a), float(b), float(c), int(rng.randint(1, 17))))
    for host, compute, total, devices in cases:
        alone = max(host, compute)
        together = alone if devices == 1 else max(devices * host, compute + total)
        want, got = devices * alone / together, answer(host, compute, total, devices)
        if not near(got, want):
            raise gave(
                f"speedup(host_ms={host:.3g}, compute_ms={compute:.3g}, sum_ms={total:.3g}, "
                f"devices={devices})",
                f"{got:.4g}" if isinstance(got, NUMBERS) else repr(got),
                f"{want:.4g}",
                _fault_of_speedup(host, compute, total, devices, got),
            )


def _fault_of_speedup(host: float, compute: float, total: float, devices: int, got: Any) -> Pair:
    alone, together = max(host, compute), max(devices * host, compute + total)
    in_turn = devices * (host + compute) / (devices * host + compute + total)
    return looks_like(
        (got is None, "the function returns nothing", "関数が何も返していません"),
        (devices == 1,
         "one device has nothing to sum, and is as fast as itself",
         "1 台なら合計は要らず、倍率はちょうど 1 です"),
        (near(got, alone / together),
         "a step on k devices trains on k times the images",
         "k 台の 1 ステップは k 倍の枚数を処理します"),
        (near(got, devices * alone / max(host, compute + total)),
         "the host queues the work of one device after the other",
         "ホストはデバイス 1 台ずつ順に処理をキューに入れます"),
        (near(got, in_turn),
         "the host queues the next step while the devices compute",
         "デバイスの計算中に、ホストは次のステップをキューに入れられます"),
        (near(got, devices * alone / max(devices * host, compute)),
         "the sum is missing, which begins when the gradients are there",
         "勾配がそろってから始まる合計の時間が入っていません"),
    )  # fmt: skip
