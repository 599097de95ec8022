"""02-3: the best learning rate for each number of devices."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Tuple

from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab02.landscapes import Landscape, check_rates, landscapes
from gluonlab.exercises.shared.counterexamples import in_english, wrong


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
