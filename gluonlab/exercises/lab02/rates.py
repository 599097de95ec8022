"""02-2 and 02-3: batch size, learning rate and steps for several devices."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab02.landscapes import Landscape, check_rates, landscapes
from gluonlab.exercises.shared.counterexamples import Case, in_english, looks_like, wrong


@exercise("02-2")
def k_times_the_batch(answer: Callable[..., Any]) -> None:
    """Batch size, learning rate and steps for k devices."""
    randint = draws(0).randint
    cases = [(1, 64, 0.1, 1280), (2, 64, 0.1, 1280), (2, 64, 0.1, 1437), (4, 256, 0.2, 60000)]
    cases.append((8, 16, 0.05, 100))
    for _ in range(5):
        cases.append((int(randint(2, 17)), int(randint(1, 300)), 0.01 * int(randint(1, 50)), 60000))
    for case in cases:
        _check_plan(answer(*case), *case)


def _check_plan(got: Any, k: int, b: int, lr: float, images: int) -> None:
    got = got.tolist() if isinstance(got, np.ndarray) else got
    case = Case(
        f"{in_english(k, 'device')} with {b} images each, lr {lr:g}, {images} images",
        f"{k} 台、1 台 {b} 枚、学習率 {lr:g}、{images} 枚",
    )
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        raise case.wrong(
            f"it returned {got!r}: return three numbers, (global batch size, learning rate, steps)",
            f"{got!r} が返りました。(全体のバッチサイズ, 学習率, ステップ数) "
            "の 3 つの数を返してください",
        )
    batch, rate, steps = got
    if batch != k * b:
        raise case.wrong(
            f"the global batch size is {batch}, expected {k * b}: "
            f"every device keeps its {b} images",
            f"全体のバッチサイズが {batch} です。正しくは {k * b} です。"
            f"各デバイスの {b} 枚は変えません",
        )
    if not math.isclose(rate, k * lr, rel_tol=1e-6):
        why = looks_like(
            (math.isclose(rate, lr / k),
             "fewer steps must be longer, not shorter",
             "ステップ数が減るので、1 回の更新は小さくではなく大きくします"),
            (math.isclose(rate, math.sqrt(k) * lr),
             "that is the square root rule; the linear one is asked for",
             "これは平方根の規則です。線形スケーリング則を使ってください"),
            (True,
             "a batch k times as large goes with a rate k times as large",
             "バッチを k 倍にしたら学習率も k 倍にします"),
        )  # fmt: skip
        raise case.wrong(
            f"the learning rate is {rate:g}, expected {k * lr:g}",
            f"学習率が {rate:g} です。正しくは {k * lr:g} です",
            why,
        )
    want = math.ceil(images / (k * b))
    if steps != want or int(steps) != steps:
        raise case.wrong(
            f"{steps} steps per epoch, expected {want}: "
            f"batches of {k * b}, and the ragged one at the end is a step, too",
            f"1 エポックが {steps} ステップです。正しくは {want} です。"
            f"{k * b} 枚ずつのバッチで、最後の端数のあるバッチも 1 ステップです",
        )


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
                "keep the accuracy, a training may be long",
                f"{k} 台、学習率 {lr:g} の学習が {times} 回行われました。"
                "学習には何時間もかかることがあります。正解率を取っておいてください",
            )
