"""02-2 and 02-3: batch size, learning rate and steps for several devices."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab02.landscapes import Landscape, check_rates, landscapes
from gluonlab.exercises.shared.counterexamples import Case, in_english, near, wrong
from gluonlab.exercises.shared.diagnosis import Mistake, Result, by, explains, results


@exercise("02-2")
def k_times_the_batch(answer: Callable[..., Any]) -> None:
    """Batch size, learning rate and steps for k devices."""
    randint = draws(0).randint
    cases = [(1, 64, 0.1, 1280), (2, 64, 0.1, 1280), (2, 64, 0.1, 1437), (4, 256, 0.2, 60000)]
    cases.append((8, 16, 0.05, 100))
    for _ in range(5):
        cases.append((int(randint(2, 17)), int(randint(1, 300)), 0.01 * int(randint(1, 50)), 60000))
    # of whole batches alone, in which no ragged one is left
    cases += [(k, b, lr, 10 * k * b) for k, b, lr, _ in cases[-4:]]
    found = results(answer, cases, lambda k, b, lr, n: (k * b, k * lr, -(-n // (k * b))))
    for number, one in enumerate(found):
        _check_plan(one, found[number:])
    found.end()


def _check_plan(one: Result, rest: Sequence[Result]) -> None:
    """Raise Wrong unless a result is right; ``rest``: it and those that come after it."""
    k, b, lr, images = one.case
    case = Case(
        f"{in_english(k, 'device')} with {b} images each, lr {lr:g}, {images} images",
        f"{k} 台、1 台 {b} 枚、学習率 {lr:g}、{images} 枚",
    )
    got = _three(one.got)
    if got is None:
        raise case.wrong(
            f"it returned {one.got!r}: "
            "return three numbers, (global batch size, learning rate, steps)",
            f"{one.got!r} が返りました。(全体のバッチサイズ, 学習率, ステップ数) "
            "の 3 つの数値を返してください",
        )
    kinds = ((BATCH, OF_BATCHES), (RATE, OF_RATES), (STEPS, OF_STEPS))
    for place, ((en, ja), known) in enumerate(kinds):
        if not _is(got[place], one.want[place]):
            numbers = _shown(got[place]), _shown(one.want[place])
            raise case.wrong(
                en.format(*numbers), ja.format(*numbers), explains(_only(rest, place), _is, *known)
            )


def _only(found: Sequence[Result], place: int) -> List[Result]:
    """The results of one of the three numbers."""
    return [
        Result(case, (_three(got) or (None,) * 3)[place], want[place]) for case, got, want in found
    ]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _three(got: Any) -> "Optional[Sequence[Any]]":
    got = got.tolist() if isinstance(got, np.ndarray) else got
    return got if isinstance(got, (tuple, list)) and len(got) == 3 else None


def _is(got: Any, want: float) -> bool:
    return got == want if isinstance(want, int) else near(got, want)


BATCH = (
    "the global batch size is {}, expected {}",
    "全体のバッチサイズが {} です。正しくは {} です",
)
RATE = (
    "the learning rate is {}, expected {}",
    "学習率が {} です。正しくは {} です",
)
STEPS = ("{} steps per epoch, expected {}", "1 エポックが {} ステップです。正しくは {} です")

OF_BATCHES: List[Mistake] = [
    (by(lambda k, b, lr, n: b),
     "every device keeps its own images, and all of them count",
     "1 台あたりの枚数は変えず、全デバイスの分を合計します"),
    (by(lambda k, b, lr, n: b / k),
     "every device keeps its own images: they are not shared out",
     "1 台あたりの枚数は変えません。デバイスの台数で割らないでください"),
]  # fmt: skip
OF_RATES: List[Mistake] = [
    (by(lambda k, b, lr, n: lr),
     "a batch k times as large goes with a rate k times as large",
     "バッチを k 倍にしたら学習率も k 倍にします"),
    (by(lambda k, b, lr, n: lr / k),
     "fewer steps must be longer, not shorter",
     "ステップ数が減るので、1 回の更新は小さくではなく大きくします"),
    (by(lambda k, b, lr, n: math.sqrt(k) * lr),
     "that is the square root rule; the linear one is asked for",
     "これは平方根の規則です。線形スケーリング則を使ってください"),
]  # fmt: skip
OF_STEPS: List[Mistake] = [
    (by(lambda k, b, lr, n: n // (k * b)),
     "the ragged batch at the end is a step, too",
     "最後の端数のあるバッチも 1 ステップです"),
    (by(lambda k, b, lr, n: n // (k * b) + 1),
     "where the images divide evenly, no ragged batch is left",
     "割り切れるときは、端数のバッチは残りません"),
    (by(lambda k, b, lr, n: round(n / (k * b))),
     "the ragged batch at the end is a step however small it is: round up",
     "端数のバッチは、どんなに小さくても 1 ステップです。切り上げてください"),
    (by(lambda k, b, lr, n: n / (k * b)),
     "there are whole steps only: round up", "ステップ数は整数です。切り上げてください"),
    (by(lambda k, b, lr, n: -(-n // b)),
     "each step takes the images of all devices", "1 ステップで全デバイス分の画像を使います"),
]  # fmt: skip


@exercise("02-3")
def which_learning_rate(answer: Callable[..., Any]) -> None:
    """The best learning rate for each number of devices."""
    for landscape in landscapes():
        _check_choice(answer, landscape)


def _check_choice(answer: Callable[..., Any], landscape: Landscape) -> None:
    """What the answer chooses in this landscape, and how often it trains for that."""
    ks, b = landscape.ks, landscape.batch_per_device
    trainings: "Counter[Tuple[int, float]]" = Counter()

    def accuracy_of(k: int, global_batch_size: int, lr: float) -> float:
        if global_batch_size != k * b:
            raise wrong(
                f"on {in_english(k, 'device')} a training with a global batch of "
                f"{global_batch_size} was asked for, expected {k * b}: {b} images on each device",
                f"{k} 台で全体のバッチサイズ {global_batch_size} の学習が行われました。"
                f"正しくは {k * b} (1 台あたり {b} 枚) です",
            )
        trainings[k, lr] += 1
        return landscape.accuracy(global_batch_size, lr)

    check_rates(answer(accuracy_of, list(ks), b, list(landscape.rates)), landscape)
    for (k, lr), times in trainings.items():
        if times > 1:
            raise wrong(
                f"{in_english(k, 'device')} with rate {lr:g} were trained {times} times: "
                "keep the accuracy: a training may take long",
                f"{k} 台、学習率 {lr:g} の学習が {times} 回行われました。"
                "学習には何時間もかかることがあります。正解率を保存して使い回してください",
            )
